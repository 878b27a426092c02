"""Measures what the drafter's window does: accept length against context length, below and above the window.

One text ends at the same place in a short and in a long context, so that the server has to continue the
same words: what differs within a pair is the context alone. Temperature 0. The accept length of a request is
its completion tokens over its verify steps; pairs of which one answer ends in a loop are left out, since a
loop is accepted whole whatever the drafter sees.

The shape, established with the reference engine (window 256, chain, 11 pairs; mean accept length at contexts
of 72, 154, 422 and 882 tokens, and the ratio of beyond to below with its 95 % interval):

    windows as declared             2.78  2.76  2.62  2.60   0.95 [0.89, 1.01]   holds
    window dropped, block causal    2.78  2.76  1.09  1.08   0.40 [0.35, 0.45]   falls
    all full, block both ways       1.11  1.15  1.11  1.07   0.95 [0.88, 1.02]   hardly accepted

So a fall at the window says that it is dropped, and no fall that it is enforced (or that this drafter does
not mind). Where causality inside the block is lost the drafter is hardly accepted at any length: there is
nothing left that could fall, and length alone cannot tell which fault it is. The rule compares within one
server and is tuned to no model.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp
import msgspec

from dflash_backend.audit.texts import corpus
from dflash_backend.core.errors import FailedError, UnreachableError, UsageError
from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.decode import mapping_or_empty
from dflash_backend.sglang.meta_info import RequestMeta, read_meta_info

Shape = Literal["holds", "falls", "hardly accepted", "not distinguishable"]

PAIRS = 12
FEWEST_PAIRS = 6
OUTPUT = 48
HOLDS_ABOVE = 0.8
FALLS_BELOW = 0.7
"""Ratio of the accept length beyond the window to the one below it; between the two nothing is said."""
HARDLY = 1.3
"""An accept length of 1 means that no draft was ever accepted."""
_SHARES = {"far below": 0.35, "below": 0.75, "beyond": 2.0, "far beyond": 4.0}
_LONG = ("beyond", "far beyond")
_RESAMPLES = 4000
_TIMEOUT_S = 600.0
_MAX_ANSWER = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % bootstrap interval over pairs."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One context length. ``tokens``: the mean prompt length as the server counted it."""

    name: str
    tokens: int
    accept_length: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured. ``ratio``: beyond over below the window; ``control``: below over far below."""

    window: int
    pairs: int
    dropped: int
    points: tuple[Point, ...]
    ratio: Interval | None
    control: Interval | None
    shape: Shape
    text: str

    def to_json(self) -> dict[str, object]:
        """The measurement as JSON types."""
        return {
            **msgspec.to_builtins(self),
            "decision": {"holds_above": HOLDS_ABOVE, "falls_below": FALLS_BELOW, "hardly_below": HARDLY},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is."""

    done: int
    total: int


async def measure(
    session: aiohttp.ClientSession,
    base_url: str,
    *,
    window: int,
    context_limit: int | None = None,
    pairs: int = PAIRS,
    output: int = OUTPUT,
    at_once: int = 2,
) -> AsyncGenerator[Progress | Measurement, None]:
    """Asks the server and ends with the measurement.

    ``window``: the declared one, in tokens. ``context_limit``: tokens that a request may have there. Raises
    UsageError when the window cannot be measured there, UnreachableError and FailedError for what the server
    does.
    """
    text = corpus()
    output = min(output, max(16, window // 5))
    per_token = await _chars_per_token(session, base_url, text)
    lengths = _lengths(window, output, context_limit, len(text) / per_token)
    ends = _ends(text, pairs)
    total = len(ends) * len(lengths)
    room = asyncio.Semaphore(max(1, at_once))

    async def ask(name: str, end: int) -> tuple[str, int, RequestMeta, str]:
        prompt = _context(text, end, round(lengths[name] * per_token))
        async with room:
            meta, answer = await generate(session, base_url, prompt, output)
        return name, end, meta, answer

    answers: dict[tuple[int, str], tuple[RequestMeta, str]] = {}
    yield Progress(done=0, total=total)
    tasks = [asyncio.create_task(ask(name, end)) for end in ends for name in lengths]
    try:
        for done, task in enumerate(asyncio.as_completed(tasks), start=1):
            name, end, meta, answer = await task
            answers[end, name] = (meta, answer)
            yield Progress(done=done, total=total)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    yield judge(window, ends, tuple(lengths), answers)


def _lengths(window: int, output: int, limit: int | None, available: float) -> dict[str, int]:
    """Context length per point, in tokens, as far as the server and the text reach."""
    most = min(available, (limit or math.inf) - output - 8)
    below = min(_SHARES["below"] * window, window - output - window * 0.05)
    lengths = {"far below": round(below * _SHARES["far below"] / _SHARES["below"]), "below": round(below)}
    for name in _LONG:
        if _SHARES[name] * window <= most:
            lengths[name] = round(_SHARES[name] * window)
    if "beyond" not in lengths and 1.5 * window <= most:
        lengths["beyond"] = round(most)
    if "beyond" not in lengths or lengths["far below"] < 16:
        raise UsageError(
            f"a window of {window} tokens cannot be measured here: that needs contexts of at least "
            f"{round(1.5 * window)} tokens, and there is room and text for {round(most)}",
            next_step="measure a server with a longer context-length",
        )
    return lengths


def _ends(text: str, pairs: int) -> list[int]:
    """Places spread over the text, each at the end of a line that has something on it."""
    step = len(text) / pairs
    places = []
    for number in range(pairs):
        place = text.find("\n", int(step * (number + 0.6)))
        while 0 <= place < len(text) - 1 and not text[text.rfind("\n", 0, place) + 1 : place].strip():
            place = text.find("\n", place + 1)
        places.append(place + 1 if place >= 0 else len(text))
    return sorted(set(places))


def _context(text: str, end: int, chars: int) -> str:
    """``chars`` of the text up to ``end``; the text is a ring."""
    chars = min(chars, len(text))
    start = end - chars
    piece = text[start:end] if start >= 0 else text[start:] + text[:end]
    line = piece.find("\n")
    return piece[line + 1 :] if 0 <= line < min(200, chars // 8) else piece


async def _chars_per_token(session: aiohttp.ClientSession, base_url: str, text: str) -> float:
    size, tokens = 2000, 0
    for start in (len(text) // 8, len(text) // 2, len(text) * 7 // 8 - size):
        meta, _ = await generate(session, base_url, text[start : start + size], 1)
        if not meta.prompt_tokens:
            raise FailedError("the server does not tell how long a prompt is", where=base_url)
        tokens += meta.prompt_tokens
    return 3 * size / tokens


async def generate(
    session: aiohttp.ClientSession, base_url: str, prompt: str, tokens: int
) -> tuple[RequestMeta, str]:
    """One greedy request on the native route. Raises UnreachableError, FailedError."""
    payload = {
        "text": prompt,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
    }
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            session.post(f"{base_url}/generate", json=payload) as response,
        ):
            body = await response.content.read(_MAX_ANSWER)
            status = response.status
    except TimeoutError:
        raise UnreachableError(f"no answer within {_TIMEOUT_S:.0f} s", where=base_url) from None
    except (aiohttp.ClientError, OSError) as error:
        raise UnreachableError(_short(f"{type(error).__name__}: {error}"), where=base_url) from error
    if status != 200:
        raise FailedError(f"the server answered {status}: {_short(body)}", where=base_url)
    try:
        answer = mapping_or_empty(msgspec.json.decode(body))
    except msgspec.DecodeError as error:
        raise FailedError(f"the server's answer is no JSON: {_short(body)}", where=base_url) from error
    words = answer.get("text")
    return read_meta_info(answer.get("meta_info")), words if isinstance(words, str) else ""


def _short(text: str | bytes) -> str:
    return redact(sanitise(text, multiline=False, limit=300))


def is_loop(text: str, tail: int = 120, longest: int = 60) -> bool:
    """True when the end of an answer repeats itself: such an answer is accepted whole in any window mode."""
    last = text[-tail:]
    return len(last) == tail and any(last[p:] == last[:-p] for p in range(1, longest + 1))


def judge(
    window: int,
    ends: Sequence[int],
    names: Sequence[str],
    answers: Mapping[tuple[int, str], tuple[RequestMeta, str]],
) -> Measurement:
    """The measurement out of the answers, by end of context and name of point."""
    lengths: dict[str, list[float]] = {name: [] for name in names}
    tokens: dict[str, list[int]] = {name: [] for name in names}
    dropped = 0
    for end in ends:
        told = [answers[end, name] for name in names]
        specs = [meta.spec for meta, _ in told]
        if any(spec is None for spec in specs):
            raise UsageError(
                "the server tells no verify steps: it does not speculate, or has no meta_info for them",
                next_step="measure a server with a drafter",
            )
        if any(is_loop(answer) for _, answer in told):
            dropped += 1
            continue
        for name, spec, (meta, _) in zip(names, specs, told, strict=True):
            assert spec is not None
            lengths[name].append(spec.accept_length)
            tokens[name].append(meta.prompt_tokens or 0)
    kept = len(ends) - dropped
    points = tuple(
        Point(name=name, tokens=round(statistics.fmean(tokens[name])), accept_length=interval(lengths[name]))
        for name in names
        if lengths[name]
    )
    if kept < FEWEST_PAIRS:
        text = f"only {kept} of {len(ends)} contexts gave answers that do not end in a loop: too few"
        return Measurement(
            window=window, pairs=kept, dropped=dropped, points=points, ratio=None, control=None,
            shape="not distinguishable", text=text,
        )  # fmt: skip
    far = [name for name in names if name in _LONG]
    beyond = [statistics.fmean(math.log(lengths[n][i]) for n in far) for i in range(kept)]
    ratio = _ratio([b - math.log(s) for b, s in zip(beyond, lengths["below"], strict=True)])
    control = _ratio(
        [math.log(b) - math.log(f) for b, f in zip(lengths["below"], lengths["far below"], strict=True)]
    )
    best = max(points, key=lambda point: point.accept_length.mean)
    shape, text = _shape(ratio, control, best)
    return Measurement(
        window=window, pairs=kept, dropped=dropped, points=points, ratio=ratio, control=control,
        shape=shape, text=text,
    )  # fmt: skip


def _shape(ratio: Interval, control: Interval, best: Point) -> tuple[Shape, str]:
    if best.accept_length.high < HARDLY:
        return "hardly accepted", (
            f"drafts are hardly accepted at any context length (at best {best.accept_length}, 1 is none): "
            "length cannot tell why. A block that lost its causality looks like this, and so does one window "
            "on every layer, or a drafter of another model"
        )
    if ratio.high < FALLS_BELOW and ratio.high < control.low:
        return "falls", (
            f"the accept length falls to {ratio} of itself beyond the window and not before it "
            f"({control} between two lengths below): the window is not applied"
        )
    if ratio.low > HOLDS_ABOVE:
        return "holds", (
            f"the accept length beyond the window is {ratio} of the one below it: the window is applied, or "
            "this drafter does not mind when it is not"
        )
    return "not distinguishable", (
        f"beyond the window the accept length is {ratio} of the one below it, and {control} between two "
        "lengths below: too little, or too gradual, to be put down to the window"
    )


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % percentile bootstrap interval; the same values always give the same interval."""
    return _bootstrap(values, lambda mean: mean)


def _ratio(logs: Sequence[float]) -> Interval:
    return _bootstrap(logs, math.exp)


def _bootstrap(values: Sequence[float], shown: Callable[[float], float]) -> Interval:
    source = random.Random(0)  # noqa: S311 (resampling, not secrets)
    count = len(values)
    means = sorted(statistics.fmean(source.choices(values, k=count)) for _ in range(_RESAMPLES))
    low, high = means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1]
    return Interval(mean=shown(statistics.fmean(values)), low=shown(low), high=shown(high))
