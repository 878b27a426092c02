"""One request from the engine's thread to the coroutine that answers it: text, stop strings, meta_info."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from dflash_engine.api import FinishReason, RequestError, Tokenizer
from dflash_engine.server.loop import EngineLoop, Progress, SpecFigures
from dflash_engine.server.requests import Prompt


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one engine step added to a request, as text. ``text`` never ends inside a character."""

    text: str
    token_ids: tuple[int, ...]
    completion_tokens: int
    finish: dict[str, object] | None
    spec: SpecFigures | None


class Generation:
    """A running request. Iterate it once; leaving the iteration early aborts the request.

    String stops are found here: the text before the match is kept, the request is ended, and up to the
    longest stop's length of text is held back so that half a stop is never sent.
    """

    def __init__(self, loop: EngineLoop, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self._loop = loop
        self._prompt = prompt
        self._decoder = tokenizer.incremental(skip_special_tokens=prompt.skip_special_tokens)
        self._queue: asyncio.Queue[Progress] = asyncio.Queue()
        self._held = ""
        self.id = prompt.request.id
        self.prompt_tokens = len(prompt.request.token_ids)
        self.received = time.time()
        self.finished: float | None = None

    async def submit(self) -> None:
        """Hands the request to the engine. Raises RequestError when it is refused."""
        running = asyncio.get_running_loop()

        def sink(progress: Progress) -> None:
            running.call_soon_threadsafe(self._queue.put_nowait, progress)

        await asyncio.wrap_future(self._loop.submit(self._prompt.request, sink))

    def abort(self) -> None:
        """Ends the request; for one that nobody will read."""
        self._loop.abort(self.id)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The output as it comes; the last chunk has ``finish``. Raises RequestError on an engine abort."""
        done = False
        try:
            while not done:
                progress = await self._queue.get()
                done = progress.finish is not None
                text = self._held + self._decoder.feed(progress.token_ids)
                if done:
                    text += self._decoder.finish()
                cut = self._find_stop(text)
                if cut is not None:
                    stop, position = cut
                    self.finished = time.time()
                    if not done:
                        self.abort()
                        done = True
                    yield self._chunk(text[:position], progress, {"type": "stop", "matched": stop})
                    return
                keep = 0 if done else self._half_stop(text)
                self._held = text[len(text) - keep :] if keep else ""
                ready = text[: len(text) - keep] if keep else text
                finish = _finish(progress.finish)
                if finish is not None:
                    self.finished = time.time()
                yield self._chunk(ready, progress, finish)
        finally:
            if not done:
                self.abort()

    def _chunk(self, text: str, progress: Progress, finish: dict[str, object] | None) -> Chunk:
        return Chunk(text, progress.token_ids, progress.completion_tokens, finish, progress.spec)

    def _find_stop(self, text: str) -> tuple[str, int] | None:
        found = [(text.find(stop), stop) for stop in self._prompt.stops if stop in text]
        if not found:
            return None
        position, stop = min(found)
        return stop, position

    def _half_stop(self, text: str) -> int:
        """How many characters at the end may be the start of a stop string."""
        longest = 0
        for stop in self._prompt.stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def meta_info(self, chunk: Chunk) -> dict[str, object]:
        """SGLang's ``meta_info``; the speculative fields under the names of 0.5.12 and later."""
        info: dict[str, object] = {
            "id": self.id,
            "finish_reason": chunk.finish,
            "prompt_tokens": self.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "completion_tokens": chunk.completion_tokens,
            "cached_tokens": 0,
        }
        spec = chunk.spec
        if spec is not None and spec.verify_passes:
            info |= {
                "spec_accept_rate": spec.accepted / spec.proposed if spec.proposed else 0.0,
                "spec_accept_length": chunk.completion_tokens / spec.verify_passes,
                "spec_num_correct_drafts": spec.accepted,
                "spec_num_proposed_drafts": spec.proposed,
                "spec_verify_ct": spec.verify_passes,
                "spec_correct_drafts_histogram": list(spec.histogram),
            }
        if self.finished is not None:
            info["e2e_latency"] = self.finished - self.received
            info["request_received_ts"] = self.received
            info["request_finished_ts"] = self.finished
        return info


def _finish(reason: FinishReason | None) -> dict[str, object] | None:
    if reason is None:
        return None
    if reason.type == "abort":
        return {"type": "abort", "message": reason.message or "Aborted"}
    if reason.type == "length":
        return {"type": "length", "length": reason.length}
    return {"type": "stop", "matched": reason.matched}


async def submit_all(generations: list[Generation]) -> None:
    """Submits a batch: all or none. Raises the first RequestError; the others are ended."""
    for index, generation in enumerate(generations):
        try:
            await generation.submit()
        except RequestError:
            for earlier in generations[:index]:
                earlier.abort()
            raise
