"""/generate and the other native routes that touch text."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping

from aiohttp import web

from dflash_engine.api import RequestError
from dflash_engine.server.generation import Chunk, Generation, submit_all
from dflash_engine.server.requests import (
    AbortBody,
    DetokenizeBody,
    GenerateBody,
    TokenizeBody,
    generate_prompts,
    read_body,
    split_ids,
)
from dflash_engine.server.state import ServerContext


def sse(payload: Mapping[str, object] | str) -> bytes:
    """One server-sent event."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


async def open_stream(request: web.Request) -> web.StreamResponse:
    """An event stream, headers sent."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


class NativeRoutes:
    """Routes in SGLang's own form."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def routes(self) -> list[web.RouteDef]:
        """What to register."""
        return [
            web.post("/generate", self.generate),
            web.put("/generate", self.generate),
            web.post("/abort_request", self.abort),
            web.post("/tokenize", self.tokenize),
            web.post("/v1/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/v1/detokenize", self.detokenize),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Text or token ids in, text and meta_info out; streaming sends the text so far each time."""
        body = await read_body(request, GenerateBody)
        context = self._context
        prompts, batch = generate_prompts(body, context.tokenizer, context.context_length)
        made = [Generation(context.loop, context.tokenizer, prompt) for prompt in prompts]
        await submit_all(made)
        if body.stream:
            return await self._stream(request, made, batch)
        answers = await asyncio.gather(*(self._collect(generation) for generation in made))
        return web.json_response(answers if batch else answers[0])

    async def _collect(self, generation: Generation) -> dict[str, object]:
        text, ids = "", list[int]()
        async for chunk in generation.chunks():
            text += chunk.text
            ids.extend(chunk.token_ids)
            if chunk.finish is not None:
                return _answer(text, ids, generation, chunk)
        raise RequestError("the request ended without a reason", status=500)

    async def _stream(self, request: web.Request, made: list[Generation], batch: bool) -> web.StreamResponse:
        response = await open_stream(request)
        lock = asyncio.Lock()

        async def pump(index: int, generation: Generation) -> None:
            text, ids = "", list[int]()
            async with contextlib.aclosing(generation.chunks()) as chunks:
                async for chunk in chunks:
                    text += chunk.text
                    ids.extend(chunk.token_ids)
                    answer = _answer(text, ids, generation, chunk)
                    if batch:
                        answer["index"] = index
                    async with lock:
                        await response.write(sse(answer))

        # A client that has gone ends the writes; the task group then ends the other generations as well.
        async with asyncio.TaskGroup() as group:
            for index, generation in enumerate(made):
                group.create_task(pump(index, generation))
        await response.write(sse("[DONE]"))
        return response

    async def abort(self, request: web.Request) -> web.Response:
        """Ends one request, or all."""
        body = await read_body(request, AbortBody)
        if body.abort_all:
            await asyncio.wrap_future(self._context.loop.call(lambda engine: engine.abort_all()))
        elif body.rid:
            await asyncio.wrap_future(self._context.loop.abort(body.rid))
        else:
            raise RequestError("rid or abort_all is needed")
        return web.Response()

    async def tokenize(self, request: web.Request) -> web.Response:
        """Token ids of a text, or of several."""
        body = await read_body(request, TokenizeBody)
        encode = self._context.tokenizer.encode
        limit = self._context.context_length
        if isinstance(body.prompt, str):
            tokens = encode(body.prompt)
            return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": limit})
        many = [encode(text) for text in body.prompt]
        return web.json_response(
            {"tokens": many, "count": [len(one) for one in many], "max_model_len": limit}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        """Text of token ids."""
        body = await read_body(request, DetokenizeBody)
        ids, batch = split_ids(body.tokens)
        tokenizer = self._context.tokenizer
        if any(not 0 <= token < tokenizer.vocab_size for one in ids for token in one):
            raise RequestError(f"a token id is outside the vocabulary of {tokenizer.vocab_size}")
        texts = [tokenizer.decode(one, skip_special_tokens=body.skip_special_tokens) for one in ids]
        return web.json_response({"text": texts if batch else texts[0]})


def _answer(text: str, ids: list[int], generation: Generation, chunk: Chunk) -> dict[str, object]:
    return {"text": text, "output_ids": list(ids), "meta_info": generation.meta_info(chunk)}
