"""Reader of what a finished request says about itself: ``meta_info`` of /generate, ``usage`` of /v1.

The speculative fields were renamed twice: 0.5.11 has ``spec_accepted_drafts``, 0.5.12 to 0.5.20 both names,
0.5.21 on only ``spec_num_correct_drafts``. What holds in every release is ``spec_verify_ct``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_backend.sglang.decode import integer, items, mapping_or_empty, number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """Speculation in one request.

    ``accept_length`` = completion tokens / verify steps, bonus token included. ``histogram[i]`` counts the
    verify steps that accepted i drafts (bonus not counted). Accept rate is left out on purpose: its
    denominator grows with the draft size, so it ranks nothing.
    """

    completion_tokens: int
    verify_ct: int
    accept_length: float
    accepted_drafts: int | None = None
    proposed_drafts: int | None = None
    histogram: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMeta:
    """What the server says about one request. Seconds; None: not told by this release or not yet."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``; None while it runs."""
    finish_message: str | None = None
    retractions: int | None = None
    queue_s: float | None = None
    e2e_s: float | None = None
    first_token_s: float | None = None
    spec: SpecStats | None = None


_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def read_meta_info(value: object) -> RequestMeta:
    """Reads a decoded ``meta_info``; odd values become None. Never raises."""
    meta = mapping_or_empty(value)
    reason = meta.get("finish_reason")
    kind = text(reason, 40) if isinstance(reason, str) else text(mapping_or_empty(reason).get("type"), 40)
    retractions = integer(meta.get("num_retractions"))
    return RequestMeta(
        prompt_tokens=integer(meta.get("prompt_tokens")),
        completion_tokens=integer(meta.get("completion_tokens")),
        cached_tokens=integer(meta.get("cached_tokens")),
        finish_reason=kind,
        finish_message=text(mapping_or_empty(reason).get("message"), 400),
        retractions=integer(meta.get("total_retractions")) if retractions is None else retractions,
        queue_s=number(meta.get("queue_time")),
        e2e_s=number(meta.get("e2e_latency")),
        first_token_s=number(meta.get("first_token_latency")),
        spec=read_spec_stats(meta),
    )


def read_spec_stats(meta: Mapping[str, object]) -> SpecStats | None:
    """Speculation figures of any release; None when the request ran without (no verify step told)."""
    verify = integer(meta.get("spec_verify_ct"))
    completion = integer(meta.get("completion_tokens"))
    if not verify or verify < 0 or completion is None or completion < 0:
        return None
    histogram: tuple[int, ...] = ()
    for key in _HISTOGRAMS:
        counts = [integer(item) for item in items(meta.get(key))[:100_000]]
        if counts and all(count is not None and count >= 0 for count in counts):
            histogram = tuple(count for count in counts if count is not None)
            break
    return SpecStats(
        completion_tokens=completion,
        verify_ct=verify,
        accept_length=completion / verify,
        accepted_drafts=_first(meta, _ACCEPTED),
        proposed_drafts=_first(meta, _PROPOSED),
        histogram=histogram,
    )


def _first(meta: Mapping[str, object], keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if (value := integer(meta.get(key))) is not None), None)


def read_usage(value: object) -> RequestMeta:
    """Reads the ``usage`` of an OpenAI-style answer. Never raises."""
    usage = mapping_or_empty(value)
    details = mapping_or_empty(usage.get("prompt_tokens_details"))
    return RequestMeta(
        prompt_tokens=integer(usage.get("prompt_tokens")),
        completion_tokens=integer(usage.get("completion_tokens")),
        cached_tokens=integer(details.get("cached_tokens")),
    )
