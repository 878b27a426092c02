"""/v1/models, /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from dflash_engine.api import RequestError
from dflash_engine.server.generation import Chunk, Generation, submit_all
from dflash_engine.server.native import open_stream, sse
from dflash_engine.server.requests import (
    ChatBody,
    CompletionBody,
    StreamOptions,
    make_prompt,
    openai_sampling,
    read_body,
    split_ids,
)
from dflash_engine.server.state import ServerContext


@dataclass(slots=True)
class _Answer:
    """One choice while it grows."""

    generation: Generation
    text: str = ""
    tokens: int = 0
    last: Chunk | None = None


class OpenAiRoutes:
    """Routes in OpenAI's form, with SGLang's additions (``matched_stop``, ``meta_info`` on request)."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        """What to register."""
        return [
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
        ]

    async def models(self, request: web.Request) -> web.Response:
        """The one model that is served."""
        name = self._context.args.served_model_name
        model = {
            "id": name,
            "object": "model",
            "created": int(self._context.created),
            "owned_by": "dflash-engine",
            "root": name,
            "parent": None,
            "max_model_len": self._context.context_length,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Text completion, one choice per prompt."""
        body = await read_body(request, CompletionBody)
        for name, wanted in {"echo": body.echo, "logprobs": body.logprobs, "suffix": body.suffix}.items():
            if wanted:
                raise RequestError(f"{name} is not supported by the reference engine")
        ids = self._prompt_ids(body.prompt)
        made = self._generations(ids, openai_sampling(body, 16).max_new_tokens, body)
        return await self._answer(request, made, body, chat=False)

    def _prompt_ids(self, prompt: str | list[str | int | list[int]]) -> list[list[int]]:
        encode = self._context.tokenizer.encode
        texts = [prompt] if isinstance(prompt, str) else [one for one in prompt if isinstance(one, str)]
        if texts and (isinstance(prompt, str) or len(texts) == len(prompt)):
            return [encode(text) for text in texts]
        if not prompt or texts:
            raise RequestError("prompt must be text, a list of texts, token ids, or a list of token ids")
        return split_ids(cast("list[object]", prompt))[0]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Chat completion with the target's ChatML template."""
        body = await read_body(request, ChatBody)
        for name, wanted in {
            "tools": bool(body.tools),
            "logprobs": body.logprobs,
            "response_format": body.response_format not in (None, {"type": "text"}),
        }.items():
            if wanted:
                raise RequestError(f"{name} is not supported by the reference engine")
        if not body.messages:
            raise RequestError("messages is empty")
        prompt = self._context.tokenizer.chat(body.messages)
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        made = self._generations([self._context.tokenizer.encode(prompt)], limit, body)
        return await self._answer(request, made, body, chat=True)

    def _generations(
        self, ids: list[list[int]], limit: int | None, body: CompletionBody | ChatBody
    ) -> list[Generation]:
        context = self._context
        params = openai_sampling(body, None)
        params.max_new_tokens = limit
        return [
            Generation(
                context.loop,
                context.tokenizer,
                make_prompt(
                    tokens,
                    params,
                    context_length=context.context_length,
                    rid=body.rid if len(ids) == 1 else None,
                ),
            )
            for tokens in ids
        ]

    async def _answer(
        self, request: web.Request, made: list[Generation], body: CompletionBody | ChatBody, *, chat: bool
    ) -> web.StreamResponse:
        await submit_all(made)
        shape = _Shape(self._context.args.served_model_name, body, chat=chat)
        answers = [_Answer(generation) for generation in made]
        if body.stream:
            return await self._stream(request, answers, shape, body.stream_options or StreamOptions())

        async def collect(answer: _Answer) -> None:
            async for chunk in answer.generation.chunks():
                answer.text += chunk.text
                answer.tokens, answer.last = chunk.completion_tokens, chunk

        await asyncio.gather(*(collect(answer) for answer in answers))
        choices = [shape.whole(index, answer) for index, answer in enumerate(answers)]
        return web.json_response(shape.envelope(choices, usage(answers)))

    async def _stream(
        self, request: web.Request, answers: list[_Answer], shape: _Shape, options: StreamOptions
    ) -> web.StreamResponse:
        response = await open_stream(request)
        lock = asyncio.Lock()

        async def pump(index: int, answer: _Answer) -> None:
            first = True
            async with contextlib.aclosing(answer.generation.chunks()) as chunks:
                async for chunk in chunks:
                    answer.tokens, answer.last = chunk.completion_tokens, chunk
                    counted = usage([answer]) if options.continuous_usage_stats else None
                    event = shape.envelope([shape.delta(index, answer, chunk, first=first)], counted)
                    first = False
                    async with lock:
                        await response.write(sse(event))

        async with asyncio.TaskGroup() as group:
            for index, answer in enumerate(answers):
                group.create_task(pump(index, answer))
        if options.include_usage:
            await response.write(sse(shape.envelope([], usage(answers))))
        await response.write(sse("[DONE]"))
        return response


def usage(answers: list[_Answer]) -> dict[str, object]:
    """Tokens of the prompt and of the output so far."""
    prompt = sum(answer.generation.prompt_tokens for answer in answers)
    output = sum(answer.tokens for answer in answers)
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


class _Shape:
    """The JSON around the text: completion or chat, whole or streamed."""

    def __init__(self, model: str, body: CompletionBody | ChatBody, *, chat: bool) -> None:
        self._id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        self._model = model
        self._chat = chat
        self._stream = body.stream
        self._meta = body.return_meta_info

    def envelope(
        self, choices: list[dict[str, object]], counted: Mapping[str, object] | None
    ) -> dict[str, object]:
        kind = "text_completion"
        if self._chat:
            kind = "chat.completion.chunk" if self._stream else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": counted,
        }

    def whole(self, index: int, answer: _Answer) -> dict[str, object]:
        content: dict[str, object] = (
            {"message": {"role": "assistant", "content": answer.text}}
            if self._chat
            else {"text": answer.text}
        )
        return self._choice(index, content, answer, answer.last)

    def delta(self, index: int, answer: _Answer, chunk: Chunk, *, first: bool) -> dict[str, object]:
        if not self._chat:
            return self._choice(index, {"text": chunk.text}, answer, chunk)
        role = {"role": "assistant"} if first else {}
        return self._choice(index, {"delta": {**role, "content": chunk.text}}, answer, chunk)

    def _choice(
        self, index: int, content: dict[str, object], answer: _Answer, chunk: Chunk | None
    ) -> dict[str, object]:
        finish = chunk.finish if chunk is not None else None
        choice = {
            "index": index,
            **content,
            "logprobs": None,
            "finish_reason": finish["type"] if finish else None,
            "matched_stop": finish.get("matched") if finish else None,
        }
        if self._meta and chunk is not None:
            choice["meta_info"] = answer.generation.meta_info(chunk)
        return choice
