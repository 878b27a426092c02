"""A light, steady load for the demo: real code prompts, one request after another, with pauses."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

QUIET_S = 15.0
"""So long the load leaves a server alone once somebody else has used it: a benchmark stays clean."""

_ENDED = re.compile(r"^sglang:num_requests_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)

PROMPTS: Sequence[str] = (
    "def parse_header(line):\n    name, _, value = line.partition(':')\n",
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n",
    "async def fetch(session, url):\n    async with session.get(url) as response:\n",
    "def test_round_trip(tmp_path):\n    path = tmp_path / 'data.json'\n",
    "for key, value in sorted(counts.items(), key=lambda item: item[1]):\n    print(",
)


async def keep_busy(base_url: str, *, seed: int, pause_s: float = 2.0, tokens: int = 192) -> None:
    """Sends prompts to ``base_url`` until cancelled. A server that is gone or starting is tried again later.

    The prompt is lengthened by earlier ones from time to time, so that context and acceptance vary. While
    others use the server, it waits.
    """
    import aiohttp

    chance = random.Random(seed)  # noqa: S311 (a load, not a secret)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        known: float | None = None
        for number in itertools.count():
            ended = await _ended(session, base_url)
            if known is not None and ended is not None and ended > known:
                known = ended
                await asyncio.sleep(QUIET_S)
                continue
            text = "".join(chance.choices(PROMPTS, k=chance.choice((1, 2, 6, 24))))
            body = {
                "text": f"# {seed}-{number}\n{text}",
                "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
            }
            try:
                async with session.post(f"{base_url}/generate", json=body) as response:
                    await response.read()
                known = None if ended is None else ended + 1
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                known = None
                await asyncio.sleep(pause_s)
            await asyncio.sleep(chance.uniform(0.2, pause_s))


async def _ended(session: aiohttp.ClientSession, base_url: str) -> float | None:
    """How many requests the server has answered, whoever sent them; None when it does not say."""
    import aiohttp

    try:
        async with session.get(f"{base_url}/metrics") as response:
            return sum(float(value) for value in _ENDED.findall(await response.text()))
    except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
        return None
