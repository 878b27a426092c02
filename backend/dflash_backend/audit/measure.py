"""Asks a server for what ``measurement`` judges: the same text continued in short and in long contexts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from dflash_backend.audit.measurement import BEYOND, Measurement, Progress, judge
from dflash_backend.audit.texts import corpus
from dflash_backend.core.errors import FailedError, UnreachableError, UsageError
from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.decode import mapping_or_empty
from dflash_backend.sglang.meta_info import RequestMeta, read_meta_info

PAIRS = 12
OUTPUT = 48
_SHARES = {"far below": 0.35, "below": 0.75, "beyond": 2.0, "far beyond": 4.0}
"""Context lengths as shares of the window."""
_TIMEOUT_S = 600.0
_MAX_ANSWER = 16 * 1024 * 1024


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
    for name in BEYOND:
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
