"""Requests: what is refused at the door, and the state of one that is in."""

from __future__ import annotations

from dataclasses import dataclass, field

from .api import FinishReason, Request, RequestError
from .kv_cache import DraftCache, TargetCache
from .sampling import Choose

MAX_TEMPERATURE = 100.0


def check_request(request: Request, *, context_length: int, capacity: int, vocab_size: int) -> None:
    """Raise ``RequestError`` (SGLang's wording where it has one) for what cannot be served."""
    prompt, sampling = request.token_ids, request.sampling
    if not prompt:
        raise RequestError("The prompt is empty: it must have at least one token.")
    if not all(_whole(t) and 0 <= t < vocab_size for t in prompt):
        raise RequestError(f"The prompt holds token ids outside the vocabulary (0 to {vocab_size - 1}).")
    new = sampling.max_new_tokens
    if not _whole(new) or new < 0:
        raise RequestError(f"max_new_tokens must be at least 0, got {new!r}.")
    if not _within(sampling.temperature, 0.0, MAX_TEMPERATURE):
        raise RequestError(
            f"temperature must be from 0 to {MAX_TEMPERATURE:g}, got {sampling.temperature!r}."
        )
    if not _within(sampling.top_p, 0.0, 1.0) or sampling.top_p == 0.0:
        raise RequestError(f"top_p must be in (0, 1], got {sampling.top_p!r}.")
    seed = sampling.seed
    if seed is not None and (not _whole(seed) or seed < 0):
        raise RequestError(f"seed must be a whole number >= 0, got {seed!r}.")
    if len(prompt) >= context_length:
        raise RequestError(
            f"The input ({len(prompt)} tokens) is longer than the model's context length "
            f"({context_length} tokens)."
        )
    if len(prompt) + new > context_length:
        raise RequestError(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. "
            f"You requested a total of {len(prompt) + new} tokens: {len(prompt)} tokens from the input "
            f"messages and {new} tokens for the completion. Please reduce the number of tokens in the input "
            "messages or the completion to fit within the limit."
        )
    if len(prompt) + new > capacity:
        raise RequestError(
            f"The request needs {len(prompt) + new} tokens of KV cache, the engine has {capacity} in all."
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: object, low: float, high: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high


@dataclass(slots=True)
class Sequence:
    """One admitted request. ``bonus`` is the last chosen token: known, but not yet in the KV cache."""

    request: Request
    prompt: list[int]
    choose: Choose
    stop_tokens: frozenset[int]
    cache: TargetCache
    draft_cache: DraftCache | None
    prefilled: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def prefilling(self) -> bool:
        return self.prefilled < len(self.prompt)

    @property
    def bonus(self) -> int:
        return self.output[-1]

    @property
    def reserved(self) -> int:
        return len(self.prompt) + self.request.sampling.max_new_tokens

    def take(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Add newly chosen tokens up to the end of the request; returns those added, and why it ended."""
        limit = self.request.sampling.max_new_tokens
        for i, token in enumerate(tokens):
            if len(self.output) == limit:
                return tokens[:i], FinishReason("length", length=limit)
            self.output.append(token)
            if token in self.stop_tokens:
                return tokens[: i + 1], FinishReason("stop", matched=token)
        if len(self.output) == limit:
            return tokens, FinishReason("length", length=limit)
        return tokens, None
