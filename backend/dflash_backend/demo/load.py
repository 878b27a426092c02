"""A light, steady load for the demo: real code prompts, one request after another, with pauses."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

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

    The prompt is lengthened by earlier ones from time to time, so that context and acceptance vary.
    """
    import aiohttp

    chance = random.Random(seed)  # noqa: S311 (a load, not a secret)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for number in itertools.count():
            text = "".join(chance.choices(PROMPTS, k=chance.choice((1, 2, 6, 24))))
            body = {
                "text": f"# {seed}-{number}\n{text}",
                "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
            }
            try:
                async with session.post(f"{base_url}/generate", json=body) as response:
                    await response.read()
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                await asyncio.sleep(pause_s)
            await asyncio.sleep(chance.uniform(0.2, pause_s))
