"""Measures what the drafter's window does: accept length against context length, below and above the window.

One text ends at the same place in a short and in a long context, so that the server has to continue the
same words: what differs within a pair is the context alone. Temperature 0. The accept length of a request is
its completion tokens over its verify steps; pairs of which one answer ends in a loop are left out, since a
loop is accepted whole whatever the drafter sees.

The shape, established with the reference engine (window 256, 11 contexts of real text; mean accept length at
72, 161, 435 and 903 tokens, and accepted drafts beyond over below with the 95 % interval):

    chain   windows as declared             2.71  2.76  2.62  2.58   0.91 [0.81, 1.03]   holds
            window dropped, block causal    2.71  2.76  1.10  1.07   0.05 [0.03, 0.07]   falls
            all full, block both ways       1.13  1.15  1.11  1.07   0.59 [0.33, 1.22]   hardly accepted
            one window on all, both ways    1.13  1.14  1.10  1.10   0.71 [0.56, 0.97]   hardly accepted
    tree    windows as declared             3.49  3.56  3.51  3.46   0.97 [0.85, 1.09]   holds
    of 16   window dropped, block causal    3.49  3.56  1.29  1.18   0.09 [0.07, 0.13]   falls
            all full, block both ways       1.58  1.66  1.30  1.18   0.36 [0.27, 0.49]   falls
            one window on all, both ways    1.58  1.67  1.46  1.51   0.72 [0.57, 0.90]   not distinguishable

So a fall at the window says that it is dropped, and no fall that it is enforced (or that this drafter does
not mind). Where causality inside the block is lost too, a chain is hardly accepted at any length: there is
nothing left that could fall, and length alone cannot tell which fault it is. A fault that does not depend on
the length lowers all of it, which cannot be seen without knowing what the drafter is good for. The rule
compares within one server and is tuned to no model.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from dflash_backend.core.errors import UsageError
from dflash_backend.sglang.meta_info import RequestMeta

Shape = Literal["holds", "falls", "hardly accepted", "not distinguishable"]

FEWEST_PAIRS = 6
HOLDS_ABOVE = 0.7
FALLS_BELOW = 0.6
"""Accepted drafts per step beyond the window over those below it; between the two nothing is said."""
HARDLY = 1.3
"""An accept length of 1 means that no draft was ever accepted."""
BELOW, BEYOND = ("far below", "below"), ("beyond", "far beyond")
"""Names of the context lengths on either side of the window."""
_RESAMPLES = 4000


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
    """What was measured. Ratios are of accepted drafts per step, the bonus token left out.

    ``ratio``: beyond over below the window; ``control``: below over far below.
    """

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
    far = [name for name in names if name in BEYOND]
    # The bonus token comes without any draft: what the drafter earns is what is accepted beside it.
    earned = {name: [value - 1.0 for value in lengths[name]] for name in names}
    beyond = [statistics.fmean(earned[name][i] for name in far) for i in range(kept)]
    ratio = ratio_of(beyond, earned["below"])
    control = ratio_of(earned["below"], earned["far below"])
    steady = _steady(control, {point.name: point.tokens for point in points}, far)
    best = max(points, key=lambda point: point.accept_length.mean)
    shape, text = _shape(ratio, control, steady, best)
    return Measurement(
        window=window, pairs=kept, dropped=dropped, points=points, ratio=ratio, control=control,
        shape=shape, text=text,
    )  # fmt: skip


def _steady(control: Interval, tokens: Mapping[str, int], far: Sequence[str]) -> float:
    """What would be left beyond the window if acceptance went on falling as it does below it, at worst.

    A drafter that gets weaker with every doubling of the context is no sign of a window.
    """
    step = math.log(max(1.1, tokens["below"] / max(1, tokens["far below"])))
    way = statistics.fmean(math.log(max(1.1, tokens[name] / tokens["below"])) for name in far)
    return math.pow(min(1.0, max(0.0, control.low)), way / step)


def _shape(ratio: Interval, control: Interval, steady: float, best: Point) -> tuple[Shape, str]:
    if best.accept_length.high < HARDLY:
        return "hardly accepted", (
            f"drafts are hardly accepted at any context length (at best {best.accept_length}, 1 is none): "
            "length cannot tell why. A block that lost its causality looks like this, and so does one window "
            "on every layer, or a drafter of another model"
        )
    if ratio.high < FALLS_BELOW and ratio.high < steady:
        return "falls", (
            f"of the drafts accepted below the window {ratio} are accepted beyond it, against {control} from "
            "one length below to the next: the window is not applied"
        )
    if ratio.low > HOLDS_ABOVE:
        return "holds", (
            f"of the drafts accepted below the window {ratio} are accepted beyond it: a window is applied, "
            "or this drafter does not mind when none is (a fault at every length, as lost causality, would "
            "not show)"
        )
    return "not distinguishable", (
        f"of the drafts accepted below the window {ratio} are accepted beyond it, against {control} from one "
        "length below to the next: too little, or too gradual, to be put down to the window"
    )


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % percentile bootstrap interval; the same values always give the same interval."""
    return ratio_of(values, [1.0] * len(values))


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Ratio of two means over pairs, with its 95 % percentile bootstrap interval over the pairs."""
    source = random.Random(0)  # noqa: S311 (resampling, not secrets)
    count = len(above)

    def ratio(pairs: Sequence[int]) -> float:
        whole = sum(below[i] for i in pairs)
        return sum(above[i] for i in pairs) / whole if whole > 0 else math.inf

    drawn = sorted(ratio(source.choices(range(count), k=count)) for _ in range(_RESAMPLES))
    low, high = drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES) - 1]
    return Interval(mean=ratio(range(count)), low=low, high=high)
