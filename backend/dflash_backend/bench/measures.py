"""What the figures mean, and how they follow from an answer. The definitions go into every result.

Tokens come in chunks of several under speculation, so time per token and time per chunk are different things.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_backend.bench.client import Answer

DEFINITIONS: dict[str, str] = {
    "ttft_ms": "first content - send",
    "tpot_ms": "(last content - first content) / (tokens - tokens in the first chunk)",
    "itl_ms": "gap between two chunks, spread evenly over the tokens of the later one; one value per token",
    "icl_ms": "gap between two chunks as it is; one value per chunk",
    "e2e_ms": "last content - send",
    "queue_ms": "send - the moment the request was due (waiting in this client)",
    "output_tok_s": "sum of output tokens / (last content - first send), per repeat; median over repeats",
    "user_tok_s": "(tokens - tokens of the first chunk) / (last - first content), per request",
    "accept_length": "sum of completion tokens / sum of verify steps over the requests, bonus token included",
    "percentiles": "from raw values of all repeats, linear interpolation; never averaged",
    "mad": "median absolute deviation from the median of the repeats",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """One answered request in milliseconds and tokens; None: not told on this route, or only one chunk."""

    ttft_ms: float
    e2e_ms: float
    queue_ms: float
    tpot_ms: float | None
    user_tok_s: float | None
    tokens: int
    first_chunk_tokens: int | None
    chunks: int
    prompt_tokens: int | None
    cached_tokens: int | None
    verify_ct: int | None
    accept_length: float | None
    retractions: int | None
    finish: str | None
    itl_ms: tuple[float, ...] = ()
    icl_ms: tuple[float, ...] = ()


def figures_of(answer: Answer) -> RequestFigures | None:
    """The figures of an answer; None for one that failed or has no content."""
    if not answer.ok or not answer.chunks:
        return None
    first, last = answer.chunks[0], answer.chunks[-1]
    counted = answer.counted
    told = answer.meta.completion_tokens
    tokens = told if told is not None else last[1]
    later = tokens - first[1] if counted else 0
    streaming = last[0] - first[0]
    per_token: list[float] = []
    per_chunk: list[float] = []
    for (before, had), (now, has) in zip(answer.chunks, answer.chunks[1:], strict=False):
        gap = (now - before) * 1000.0
        per_chunk.append(gap)
        if counted and has > had:
            per_token += [gap / (has - had)] * (has - had)
    spec = answer.meta.spec
    return RequestFigures(
        ttft_ms=(first[0] - answer.sent) * 1000.0,
        e2e_ms=(last[0] - answer.sent) * 1000.0,
        queue_ms=(answer.sent - answer.scheduled) * 1000.0,
        tpot_ms=streaming * 1000.0 / later if later > 0 else None,
        user_tok_s=later / streaming if later > 0 and streaming > 0 else None,
        tokens=tokens,
        first_chunk_tokens=first[1] if counted else None,
        chunks=len(answer.chunks),
        prompt_tokens=answer.meta.prompt_tokens,
        cached_tokens=answer.meta.cached_tokens,
        verify_ct=spec.verify_ct if spec else None,
        accept_length=spec.accept_length if spec else None,
        retractions=answer.meta.retractions,
        finish=answer.meta.finish_reason,
        itl_ms=tuple(per_token),
        icl_ms=tuple(per_chunk),
    )
