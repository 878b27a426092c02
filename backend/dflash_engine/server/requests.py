"""Request bodies: decoded, checked, and turned into engine requests. Every fault names its field."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from dflash_engine.api import Request, RequestError, SamplingParams, Tokenizer

T = TypeVar("T")

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a request body."""


class SamplingBody(msgspec.Struct, kw_only=True):
    """``sampling_params`` of /generate; SGLang's defaults."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """Body of /generate."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] = False
    image_data: Any = None
    input_embeds: Any = None
    lora_path: Any = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """``stream_options`` of the OpenAI routes."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _OpenAiBody(msgspec.Struct, kw_only=True):
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    repetition_penalty: float = 1.0
    n: int | None = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_meta_info: bool = False
    rid: str | None = None


class CompletionBody(_OpenAiBody, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None


class ChatBody(_OpenAiBody, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    tools: Any = None
    response_format: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Body of /tokenize."""

    prompt: str | list[str]
    model: str = ""
    add_special_tokens: bool = True


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Body of /detokenize."""

    tokens: list[int | list[int]]
    model: str = ""
    skip_special_tokens: bool = True


class AbortBody(msgspec.Struct, kw_only=True):
    """Body of /abort_request."""

    rid: str = ""
    abort_all: bool = False


class InternalStateBody(msgspec.Struct, kw_only=True):
    """Body of /set_internal_state."""

    server_args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request, ready for the engine, and how to cut its text."""

    request: Request
    stops: tuple[str, ...]
    skip_special_tokens: bool


async def read_body(request: web.Request, kind: type[T]) -> T:
    """The decoded body. Raises RequestError (400, 413) for everything that does not fit ``kind``."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestError(f"the body is larger than {MAX_BODY} bytes", status=413) from error
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"invalid request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _refuse(given: Mapping[str, bool]) -> None:
    for name, wanted in given.items():
        if wanted:
            raise RequestError(f"{name} is not supported by the reference engine")


def _checked(body: SamplingBody) -> SamplingBody:
    _refuse(
        {
            "top_k": body.top_k not in (-1, 0, 1),
            "min_p": body.min_p != 0.0,
            "frequency_penalty": body.frequency_penalty != 0.0,
            "presence_penalty": body.presence_penalty != 0.0,
            "repetition_penalty": body.repetition_penalty != 1.0,
            "min_new_tokens": body.min_new_tokens != 0,
            "n": body.n != 1,
            "json_schema": body.json_schema is not None,
            "regex": body.regex is not None,
            "ebnf": body.ebnf is not None,
        }
    )
    return body


def sampling(body: SamplingBody, *, room: int) -> SamplingParams:
    """Engine parameters; ``room`` is what the context leaves when no limit is given."""
    _checked(body)
    greedy = body.top_k == 1 or body.temperature == 0.0
    return SamplingParams(
        temperature=0.0 if greedy else body.temperature,
        top_p=body.top_p,
        max_new_tokens=room if body.max_new_tokens is None else body.max_new_tokens,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        seed=body.sampling_seed,
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings without empty ones."""
    strings = [stop] if isinstance(stop, str) else stop or []
    return tuple(text for text in strings if text)


def make_prompt(
    token_ids: Sequence[int], body: SamplingBody, *, context_length: int, rid: str | None = None
) -> Prompt:
    """One engine request under a fresh id, or under the caller's."""
    room = max(context_length - len(token_ids), 0)
    return Prompt(
        Request(rid or uuid.uuid4().hex, list(token_ids), sampling(body, room=room)),
        stop_strings(body.stop),
        body.skip_special_tokens,
    )


def generate_prompts(
    body: GenerateBody, tokenizer: Tokenizer, context_length: int
) -> tuple[list[Prompt], bool]:
    """The prompts of a /generate body and whether it was a batch."""
    _refuse(
        {
            "return_logprob": bool(body.return_logprob),
            "image_data": body.image_data is not None,
            "input_embeds": body.input_embeds is not None,
            "lora_path": bool(body.lora_path),
        }
    )
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Either text or input_ids should be provided, and only one of them.")
    if body.text is not None:
        batch = isinstance(body.text, list)
        texts = body.text if isinstance(body.text, list) else [body.text]
        ids = [tokenizer.encode(text) for text in texts]
    else:
        ids, batch = split_ids(body.input_ids or [])
    if not ids:
        raise RequestError("the batch is empty")
    params = body.sampling_params or SamplingBody()
    each = params if isinstance(params, list) else [params] * len(ids)
    rids = body.rid if isinstance(body.rid, list) else [body.rid] * len(ids)
    if isinstance(body.rid, str) and len(ids) > 1:
        rids = [f"{body.rid}_{index}" for index in range(len(ids))]
    if len(each) != len(ids) or len(rids) != len(ids):
        raise RequestError("sampling_params and rid must be as many as there are prompts")
    prompts = [
        make_prompt(tokens, one, context_length=context_length, rid=rid)
        for tokens, one, rid in zip(ids, each, rids, strict=True)
    ]
    return prompts, batch


def split_ids(ids: Sequence[object]) -> tuple[list[list[int]], bool]:
    """Token ids of one prompt or of several, as several, and whether they were several.

    Raises RequestError when ids and lists of ids are mixed.
    """
    single = [one for one in ids if isinstance(one, int)]
    if len(single) == len(ids):
        return [single], False
    many = [[token for token in one if isinstance(token, int)] for one in ids if isinstance(one, list)]
    if len(many) != len(ids):
        raise RequestError("token ids must be a list of numbers, or a list of such lists")
    return many, True


def openai_sampling(body: CompletionBody | ChatBody, default_tokens: int | None) -> SamplingBody:
    """Sampling of an OpenAI body in /generate's words."""
    limit = body.max_tokens if body.max_tokens is not None else default_tokens
    return SamplingBody(
        max_new_tokens=limit,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=body.repetition_penalty,
        n=body.n or 1,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        sampling_seed=body.seed,
    )
