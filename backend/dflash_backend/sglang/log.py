"""Reader of SGLang's scheduler log: batch lines by key, never by position.

The line has changed in every few releases (full stop or comma after the head, hybrid-model token counts, PD
queues, graph label per device, optional suffixes) and fields come and go, so every field is optional and
keys that are not known are kept. Figures in a line hold for the interval since the previous line of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash_backend.core.text import sanitise

_PREFIX = re.compile(
    r"^\s*(?:\((?P<process>[A-Za-z][\w .:=-]{0,60})\)\s*|(?P<service>[\w.@-]{1,60})\s*\|\s*)?"
)
_STAMP = re.compile(
    r"\[?(?P<stamp>(?:\d{4}-\d{2}-\d{2}[ T])?\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?)"
    r"(?P<tags>(?: (?:[A-Z]{2,8}\d{1,6}|[A-Za-z]+=\d{1,6}))*)(?P<close>\])?\s*"
)
_LEVEL = re.compile(r"^\[?(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?:?\s+")
_BRACKET_TAGS = re.compile(r"^\[(?P<tags>(?:[A-Z]{2,4}\d{1,6})(?: [A-Z]{2,4}\d{1,6})*)\]\s*")
_RANK = re.compile(r"(?P<name>[A-Z]{2,8})(?P<rank>\d{1,6})")
_HEAD = re.compile(
    # Whatever a logger, journal or container puts in front, but no quoted text: a prompt may say anything.
    r"^(?P<front>[^'\"{}]{0,200}?(?<![\w-]))(?P<kind>Decode|Prefill) batch"
    r"(?: \[(?P<iteration>\d+)\])?\s*[,.:]\s*"
)
_ANY_STAMP = re.compile(
    r"(?P<stamp>(?:\d{4}-\d{2}-\d{2}[ T])?\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:Z|[+-]\d{2}:?\d{2})?)"
)
_ANY_RANK = re.compile(
    r"(?<![\w-])(?P<name>(?i:TP|DP|PP|EP|CP|ATTN_TP|MOE_EP))[=_]?(?P<rank>\d{1,6})(?![\w.])"
)
_PAIR = re.compile(r"\s*(?P<key>[#A-Za-z][^:,]{0,80}?):\s*(?P<value>[^,]*)(?:,|$)")
_FLOAT = re.compile(r"^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A log line split into what stands before the message and the message.

    ``ranks`` has lower-case names: ``{"tp": 0, "dp": 1}``.
    """

    text: str
    stamp: str | None = None
    level: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_rank(self) -> bool:
        """True for lines of rank 0 of everything, and for lines without ranks."""
        return not any(self.ranks.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """What decode and prefill lines have in common. Usages are shares 0..1; None: not in the line."""

    stamp: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    iteration: int | None = None
    running_req: int | None = None
    queue_req: int | None = None
    token: int | None = None
    token_usage: float | None = None
    full_token: int | None = None
    full_token_usage: float | None = None
    swa_token: int | None = None
    swa_token_usage: float | None = None
    mamba_num: int | None = None
    mamba_usage: float | None = None
    graph: bool | None = None
    graph_kind: str | None = None
    """Which device's graphs: cuda, cpu, npu, musa."""
    prealloc_req: int | None = None
    transfer_req: int | None = None
    bootstrap_req: int | None = None
    inflight_req: int | None = None
    other: Mapping[str, float | bool | str] = field(default_factory=dict)
    """Fields of the line that have no name here, by their key in the log."""

    @property
    def usage(self) -> float | None:
        """Share of the KV pool in use: the fullest of the pools that the line tells of."""
        known = [
            u
            for u in (self.token_usage, self.full_token_usage, self.swa_token_usage, self.mamba_usage)
            if u is not None
        ]
        return max(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLine(BatchLine):
    """``Decode batch``: figures over the last decode-log interval. ``accept_len`` counts the bonus token.

    ``gen_throughput`` is tokens per second over the time since the previous decode line, pauses and
    prefills included: see ``ThroughputFilter``. ``fragment``: the line lacks its head.
    """

    accept_len: float | None = None
    accept_rate: float | None = None
    cap_len: float | None = None
    block_accept_len: float | None = None
    largest_len: float | None = None
    preallocated_usage: float | None = None
    retracted_req: int | None = None
    gen_throughput: float | None = None
    fragment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLine(BatchLine):
    """``Prefill batch``: one prefill step. ``cache_hit_rate`` is a share 0..1 (percent in logs of 2024)."""

    new_seq: int | None = None
    new_token: int | None = None
    cached_token: int | None = None
    pending_token: int | None = None
    replay_token: int | None = None
    cache_hit_rate: float | None = None
    input_throughput: float | None = None


def split_line(line: str) -> LogLine:
    """``line`` without process prefix, stamp, ranks and level; never raises. Input is sanitised here."""
    rest = sanitise(line, multiline=False).strip()
    stamp: str | None = None
    level: str | None = None
    ranks: dict[str, int] = {}
    found = _STAMP.match(rest)
    if found is None:
        prefix = _PREFIX.match(rest)
        if prefix and prefix.end():
            inner = rest[prefix.end() :]
            found = _STAMP.match(inner)
            if found is not None:
                rest = inner
    if found is not None:
        stamp = found["stamp"]
        ranks.update(_ranks(found["tags"]))
        rest = rest[found.end() :]
    # Tags and level come in either order, and some formatters put each in brackets of its own.
    for _ in range(3):
        tags = _BRACKET_TAGS.match(rest)
        if tags:
            ranks.update(_ranks(tags["tags"]))
            rest = rest[tags.end() :]
        leading = _LEVEL.match(rest)
        if leading and not rest.startswith("INFO:  "):
            level = leading["level"]
            rest = rest[leading.end() :]
    return LogLine(text=rest, stamp=stamp, level=level, ranks=ranks)


def _ranks(tags: str) -> dict[str, int]:
    return {m["name"].lower(): int(m["rank"]) for m in _RANK.finditer(tags)}


_COMMON: dict[str, tuple[str, Literal["int", "float"]]] = {
    "#running-req": ("running_req", "int"),
    "#queue-req": ("queue_req", "int"),
    "#token": ("token", "int"),
    "token usage": ("token_usage", "float"),
    "#full token": ("full_token", "int"),
    "full token usage": ("full_token_usage", "float"),
    "#swa token": ("swa_token", "int"),
    "swa token usage": ("swa_token_usage", "float"),
    "mamba num": ("mamba_num", "int"),
    "#mamba num": ("mamba_num", "int"),
    "mamba usage": ("mamba_usage", "float"),
    "#prealloc-req": ("prealloc_req", "int"),
    "#transfer-req": ("transfer_req", "int"),
    "#bootstrap-req": ("bootstrap_req", "int"),
    "#unbootstrapped-req": ("bootstrap_req", "int"),
    "#inflight-req": ("inflight_req", "int"),
}
_DECODE: dict[str, tuple[str, Literal["int", "float"]]] = {
    **_COMMON,
    "accept len": ("accept_len", "float"),
    "accept rate": ("accept_rate", "float"),
    "cap len": ("cap_len", "float"),
    "block accept len": ("block_accept_len", "float"),
    "largest-len": ("largest_len", "float"),
    "pre-allocated usage": ("preallocated_usage", "float"),
    "#retracted-req": ("retracted_req", "int"),
    "gen throughput (token/s)": ("gen_throughput", "float"),
}
_PREFILL: dict[str, tuple[str, Literal["int", "float"]]] = {
    **_COMMON,
    "#new-seq": ("new_seq", "int"),
    "#new-token": ("new_token", "int"),
    "#cached-token": ("cached_token", "int"),
    "#pending-token": ("pending_token", "int"),
    "#replay-token": ("replay_token", "int"),
    "cache hit rate": ("cache_hit_rate", "float"),
    "input throughput (token/s)": ("input_throughput", "float"),
}
_GRAPH = re.compile(r"^(?P<kind>[a-z]{2,8}) graph$")
_MARKS = ("Decode batch", "Prefill batch", "gen throughput (token/s):")


def read_batch_line(line: str) -> DecodeLine | PrefillLine | None:
    """A decode or prefill line of any release; None for every other line. Never raises."""
    if not any(mark in line for mark in _MARKS):
        return None
    clean = sanitise(line, multiline=False).strip()
    head = _HEAD.match(clean)
    if head is None:
        # A fragment that somebody copied out of a log: still a decode line when it says how fast.
        if "gen throughput (token/s):" not in clean or " batch" in clean:
            return None
        kind, iteration, front, body = "Decode", None, "", clean
    else:
        kind, front, body = head["kind"], head["front"], clean[head.end() :]
        iteration = int(head["iteration"]) if head["iteration"] and len(head["iteration"]) < 19 else None
    # The last stamp is SGLang's own; a journal's stands before it.
    stamps = _ANY_STAMP.findall(front)
    ranks = {m["name"].lower(): int(m["rank"]) for m in _ANY_RANK.finditer(front)}
    known = _DECODE if kind == "Decode" else _PREFILL
    values: dict[str, Any] = {}
    other: dict[str, float | bool | str] = {}
    for key, raw in _pairs(body):
        value = _value(raw)
        spec = known.get(key)
        graph = _GRAPH.match(key)
        if graph is not None and isinstance(value, bool):
            values["graph"], values["graph_kind"] = value, graph["kind"]
        elif spec is None:
            if value is not None:
                other[key] = value
        elif isinstance(value, float):
            name, form = spec
            if form == "int":
                values[name] = int(value)
            else:
                # "cache hit rate: 2.76%" of 2024 against shares elsewhere.
                values[name] = value / 100 if raw.rstrip().endswith("%") else value
    if head is None and "gen_throughput" not in values:
        return None
    values.update(stamp=stamps[-1] if stamps else None, ranks=ranks, iteration=iteration, other=other)
    if kind == "Prefill":
        return PrefillLine(**values)
    return DecodeLine(fragment=head is None, **values)


def _pairs(body: str) -> Iterable[tuple[str, str]]:
    for match in _PAIR.finditer(body[:4000]):
        yield match["key"].strip(), match["value"].strip()


def _value(raw: str) -> float | bool | str | None:
    if raw in ("True", "False"):
        return raw == "True"
    plain = raw.removesuffix("%").strip()
    if _FLOAT.match(plain) and len(plain) < 40:
        value = float(plain)
        return value if abs(value) < 1e18 else None
    if raw.lower() in ("", "nan", "inf", "-inf", "none", "n/a"):
        return None
    return raw[:200]


class ThroughputFilter:
    """Says which decode throughputs may be trusted: the first one after a pause covers the pause too.

    A pause is known by a prefill that met an idle scheduler, or by stamps much further apart than before.
    One filter per log; of each replica only the first tensor and pipeline rank counts.
    """

    def __init__(self) -> None:
        self._last: dict[int, float | None] = {}
        self._usual: dict[int, float] = {}
        self._idle: set[int] = set()
        self._first_tp: dict[int, int] = {}

    def feed(self, line: DecodeLine | PrefillLine) -> float | None:
        """The trusted throughput of a decode line in tokens per second, else None."""
        rank, tensor = line.ranks.get("dp", 0), line.ranks.get("tp", 0)
        # With data-parallel attention the first tensor rank of replica 1 is not 0: DP1 TP4.
        if tensor > self._first_tp.setdefault(rank, tensor) or line.ranks.get("pp", 0):
            return None
        if isinstance(line, PrefillLine):
            if line.running_req == 0:
                self._idle.add(rank)
            return None
        now = stamp_seconds(line.stamp)
        known = rank in self._last
        last = self._last.get(rank)
        self._last[rank] = now
        paused = not known or rank in self._idle
        self._idle.discard(rank)
        if not paused and now is not None and last is not None:
            interval = (now - last) % 86400.0
            usual = self._usual.get(rank)
            paused = interval > (60.0 if usual is None else max(10.0, 8.0 * usual))
            if not paused:
                self._usual[rank] = interval
        return None if paused else line.gen_throughput


_CLOCK = re.compile(r"(?P<h>\d{2}):(?P<m>\d{2}):(?P<s>\d{2}(?:[.,]\d+)?)")


def stamp_seconds(stamp: str | None) -> float | None:
    """Seconds since midnight of a log stamp; None without one. Differences are taken modulo a day."""
    found = _CLOCK.search(stamp or "")
    if found is None:
        return None
    return int(found["h"]) * 3600 + int(found["m"]) * 60 + float(found["s"].replace(",", "."))


def read_batch_lines(lines: Iterable[str]) -> tuple[DecodeLine | PrefillLine, ...]:
    """All batch lines among ``lines``, in their order."""
    return tuple(found for line in lines if (found := read_batch_line(line)) is not None)
