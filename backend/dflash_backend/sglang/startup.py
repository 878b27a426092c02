"""A starting server's progress and facts, read from its log.

The tracker sees the log in order, or only the last kilobytes of it once a second: overlapping tails are
joined, so that an old line never turns the progress back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dflash_backend.core.samples import Stage
from dflash_backend.core.states import StageName
from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.log import LogLine, split_line


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRunner:
    """The log's ``Initialized ... draft runner`` line and the one that follows it.

    ``window`` is the command line's value only: the line says None on 0.5.14+ also when the windows of the
    drafter's config are in force, so it proves nothing about what is attended.
    """

    algorithm: str
    attention_backend: str | None = None
    model: str | None = None
    block_size: int | None = None
    window: int | None = None
    compact_cache: bool | None = None
    mask_token: str | None = None
    mask_token_id: int | None = None
    other: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFacts:
    """What the log tells about the server that starts. Memory is GB as the log prints it."""

    draft_runner: DraftRunner | None = None
    target_class: str | None = None
    draft_class: str | None = None
    weights_gb: float | None = None
    draft_weights_gb: float | None = None
    kv_cache_gb: float | None = None
    draft_kv_cache_gb: float | None = None
    graphs_gb: float | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    available_gb: float | None = None
    warnings: tuple[str, ...] = ()


_BAR = re.compile(
    r"^(?P<label>[^|]{0,200}?):?\s*\d{1,3}%[^|]*\|(?:[^|]*\|)?\s*(?P<done>\d{1,6})/(?P<total>\d{1,6})\b"
)
_SHARDS = re.compile(r"shards|checkpoint|Loading (?:weights|pt|safetensors)", re.IGNORECASE)
_CAPTURE = re.compile(r"Captur|Compiling num tokens|graph", re.IGNORECASE)
_GRAPH_BEGIN = re.compile(r"Captur\w*\s.*graph.*begin", re.IGNORECASE)
_GRAPH_SIZES = re.compile(
    r"Captur\w*\s.*graph.*?(?:bs|num tokens|num_tokens)\s*[=:]?\s*\[(?P<sizes>[^\]]*)", re.IGNORECASE
)
_GRAPH_END = re.compile(r"Captur\w*\s.*graph.*end\b.*?mem usage=(?P<gb>-?[\d.]+) GB", re.IGNORECASE)
_WEIGHT_END = re.compile(r"Load weight end\..*?type=(?P<cls>[\w.]+).*?mem usage=(?P<gb>-?[\d.]+) GB")
_KV_DONE = re.compile(r"KV Cache is allocated\.")
_KV_SIZES = re.compile(r"\b(?:K|V|KV) size: (?P<gb>-?[\d.]+) GB")
_TOTALS = re.compile(r"^max_total_num_tokens=")
_RUNNER = re.compile(r"Initialized (?P<algorithm>[A-Z][A-Z0-9_]*) draft runner\.\s*(?P<pairs>.*)")
_RUNNER_READY = re.compile(r"(?P<algorithm>[A-Z][A-Z0-9_]*) draft runner ready\.\s*(?P<pairs>.*)")
_PAIRS = re.compile(r"(?P<key>[A-Za-z_]\w*)=(?P<value>.*?)(?=,\s*[A-Za-z_]\w*=|$)")
_WARM = re.compile(
    r"Application startup complete|Uvicorn running on|Started server process|^max_total_num_tokens="
)
READY_TEXT = "The server is fired up and ready to roll!"
_ANSWERED = re.compile(r'"(?:GET|POST) [^"]*" \d{3}')

WARNINGS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"block size mismatch",
        r"non-greedy verification is unavailable",
        r"Failed to infer DFLASH block_size",
        r"Max running requests is reset to",
        r"Overlap scheduler is disabled when using",
        r"draft (?:worker |model )?attention.?backend.*(?:fall|instead|switch|not support)",
        r"fall(?:ing)? ?back to .*(?:draft|flashinfer|fa4)",
        r"fused KV materialization disabled",
        r"draft.window.*(?:deprecated|ignored)",
        r"KV pool holds \d+ tokens, fewer than --context-length",
        r"took [\d.]+ s to compile after serving started",
        r"is deprecated and will be removed",
        r"Cuda graph is disabled because",
        r"Ignoring? .*speculative",
    )
)
"""Lines of a healthy start that an operator should see."""

MAX_WARNINGS = 50


class StartupTracker:
    """Follows one start. Feed it every line once (``feed``) or overlapping tails (``feed_tail``).

    ``stage`` follows the log's own order, which differs between releases: up to 0.5.13 the target's graphs
    are captured before the drafter's weights are read. Once ready, always ready. Memory is bounded.
    """

    def __init__(self) -> None:
        self.stage = Stage(name=StageName.LAUNCH)
        self._weights_seen = 0
        self._kv_seen = 0
        self._anchor: tuple[str, ...] = ()
        self._facts: dict[str, object] = {}
        self._warnings: list[str] = []

    @property
    def ready(self) -> bool:
        """The log says so; whether the server answers is for a request to show."""
        return self.stage.name is StageName.READY

    @property
    def facts(self) -> StartupFacts:
        """Everything that has been learnt so far."""
        return StartupFacts(warnings=tuple(self._warnings), **self._facts)  # type: ignore[arg-type]

    def feed_tail(self, tail: str) -> Stage:
        """Takes the end of the log as it is now; what has been seen in the previous tail is skipped."""
        lines = sanitise(tail).split("\n")
        unfinished = lines.pop()
        lines = [line for line in lines if line]
        start = self._after_anchor(lines)
        for line in lines[start:]:
            self.feed(line)
        if lines:
            self._anchor = tuple(lines[-4:])
        # A progress bar's newest step has no line end yet; anything else waits until it is whole.
        if "%" in unfinished and "|" in unfinished:
            self.feed(unfinished)
        return self.stage

    def _after_anchor(self, lines: list[str]) -> int:
        # The first line of a tail is cut off in front: only its end can be compared. Where the whole anchor
        # is no longer in the tail, the tail begins inside it.
        size = len(self._anchor)
        if not size:
            return 0
        places = [(end - size, end) for end in range(len(lines), size - 1, -1)]
        places += [(0, kept) for kept in range(min(size - 1, len(lines)), 0, -1)]
        for begin, end in places:
            anchor = self._anchor[size - (end - begin) :]
            if list(anchor[1:]) == lines[begin + 1 : end] and (
                anchor[:1] == tuple(lines[begin : begin + 1])
                or (begin == 0 and end > 0 and _is_end_of(anchor[0], lines[0]))
            ):
                return end
        return 0

    def feed(self, line: str) -> Stage:
        """Takes one line (a progress bar's steps are lines of their own); returns the stage after it."""
        split = split_line(line)
        if not split.first_rank or self.ready:
            if split.first_rank:
                self._warn(split)
            return self.stage
        body = split.text
        if not self._bar(body):
            self._milestone(body)
        self._warn(split)
        return self.stage

    def _enter(self, name: StageName, done: int | None = None, total: int | None = None) -> None:
        self.stage = Stage(name=name, done=done, total=total)

    def _bar(self, body: str) -> bool:
        found = _BAR.match(body)
        if found is None:
            return False
        label, done, total = found["label"], int(found["done"]), int(found["total"])
        if not total or done > total:
            return True
        if _SHARDS.search(label):
            name = StageName.DRAFT_WEIGHTS if self._weights_seen > 1 else StageName.WEIGHTS
        elif _CAPTURE.search(label) or (not label.strip() and self.stage.name is StageName.GRAPHS):
            name = StageName.GRAPHS
        else:
            return True
        before = self.stage
        # Ranks print the same bar, one a little behind the other; a new bar starts at nought.
        if done and (before.name, before.total) == (name, total) and done < (before.done or 0):
            return True
        self._enter(name, done, total)
        return True

    def _milestone(self, body: str) -> None:
        if "Load weight begin" in body:
            self._weights_seen += 1
            later = self._weights_seen > 1 or self._kv_seen or self.stage.name is StageName.GRAPHS
            self._weights_seen = 2 if later else 1
            self._enter(StageName.DRAFT_WEIGHTS if later else StageName.WEIGHTS)
        elif found := _WEIGHT_END.search(body):
            draft = self._weights_seen > 1 or "draft" in found["cls"].lower()
            self._facts["draft_class" if draft else "target_class"] = found["cls"]
            self._facts["draft_weights_gb" if draft else "weights_gb"] = _gb(found["gb"])
        elif _KV_DONE.search(body) or "Using KV cache dtype" in body:
            self._kv(body)
        elif _GRAPH_BEGIN.search(body):
            self._enter(StageName.GRAPHS)
        elif found := _GRAPH_END.search(body):
            before = self._facts.get("graphs_gb")
            new = _gb(found["gb"])
            if new is not None:
                self._facts["graphs_gb"] = round((before if isinstance(before, float) else 0.0) + new, 3)
        elif found := _GRAPH_SIZES.search(body):
            total = len([size for size in found["sizes"].split(",") if size.strip()])
            if self.stage.name is not StageName.GRAPHS or self.stage.done is None:
                self._enter(StageName.GRAPHS, 0, total or None)
        elif found := _RUNNER.search(body) or _RUNNER_READY.search(body):
            self._runner(found["algorithm"], found["pairs"])
        elif READY_TEXT in body:
            self._enter(StageName.READY)
        elif _WARM.search(body):
            self._enter(StageName.WARM_UP)
        if _TOTALS.match(body):
            self._totals(body)

    def _kv(self, body: str) -> None:
        # The drafter's pool comes second and is no stage of its own.
        if not self._kv_seen:
            self._enter(StageName.KV_POOL)
        if _KV_DONE.search(body):
            self._kv_seen += 1
            sizes = [size for m in _KV_SIZES.finditer(body) if (size := _gb(m["gb"])) is not None]
            drafting = self._weights_seen > 1 or "draft_class" in self._facts
            if sizes and (self._kv_seen == 1 or drafting):
                name = "kv_cache_gb" if self._kv_seen == 1 else "draft_kv_cache_gb"
                self._facts.setdefault(name, round(sum(sizes), 3))

    def _totals(self, body: str) -> None:
        pairs = _read_pairs(body)
        for name, key in (
            ("max_total_tokens", "max_total_num_tokens"),
            ("max_running_requests", "max_running_requests"),
            ("context_length", "context_len"),
        ):
            if (value := _whole(pairs.get(key))) is not None:
                self._facts[name] = value
        available = pairs.get("available_gpu_mem") or pairs.get("available_cpu_mem")
        if available:
            self._facts["available_gb"] = _gb(available.split()[0])

    def _runner(self, algorithm: str, text: str) -> None:
        pairs = _read_pairs(text)
        known = self._facts.get("draft_runner")
        old = known if isinstance(known, DraftRunner) else DraftRunner(algorithm=algorithm)
        self._facts["draft_runner"] = merge_runner(old, algorithm, pairs)

    def _warn(self, split: LogLine) -> None:
        body = split.text
        if len(self._warnings) >= MAX_WARNINGS or _ANSWERED.search(body):
            return
        if any(pattern.search(body) for pattern in WARNINGS):
            line = redact(body)[:400]
            if line not in self._warnings:
                self._warnings.append(line)


def _is_end_of(line: str, cut: str) -> bool:
    # The cut may go through an escape sequence, of which harmless characters are then left in front.
    return line.endswith(cut) or (len(cut) > 12 and line.endswith(cut[12:]))


def merge_runner(old: DraftRunner, algorithm: str, pairs: Mapping[str, str]) -> DraftRunner:
    """``old`` with what one more draft-runner line says; keys without a field go to ``other``."""
    named = {
        "attention_backend", "model", "block_size", "draft_window_size", "compact_cache", "mask_token",
        "mask_token_id",
    }  # fmt: skip
    compact = pairs.get("compact_cache")
    return DraftRunner(
        algorithm=algorithm,
        attention_backend=_word(pairs.get("attention_backend")) or old.attention_backend,
        model=_word(pairs.get("model")) or old.model,
        block_size=_or(_whole(pairs.get("block_size")), old.block_size),
        window=_or(_whole(pairs.get("draft_window_size")), old.window),
        compact_cache=compact == "True" if compact in ("True", "False") else old.compact_cache,
        mask_token=_word(pairs.get("mask_token")) or old.mask_token,
        mask_token_id=_or(_whole(pairs.get("mask_token_id")), old.mask_token_id),
        other={**old.other, **{k: v for k, v in pairs.items() if k not in named}},
    )


def read_draft_runner(lines: Iterable[str]) -> DraftRunner | None:
    """The draft runner that a log tells of, from all of its lines; None when it has none."""
    runner: DraftRunner | None = None
    for line in lines:
        if "draft runner" not in line:
            continue
        found = _RUNNER.search(body := split_line(line).text) or _RUNNER_READY.search(body)
        if found:
            pairs = _read_pairs(found["pairs"])
            runner = merge_runner(
                runner or DraftRunner(algorithm=found["algorithm"]), found["algorithm"], pairs
            )
    return runner


def _read_pairs(text: str) -> dict[str, str]:
    return {m["key"]: redact(m["value"].strip())[:300] for m in _PAIRS.finditer(text[:4000])}


def _word(value: str | None) -> str | None:
    return None if value in (None, "", "None") else value


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\d{1,15}", value) else None


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _gb(value: str) -> float | None:
    # Adding nought turns the log's -0.00 into 0.
    return float(value) + 0.0 if re.fullmatch(r"-?\d{1,9}(?:\.\d{1,9})?", value) else None
