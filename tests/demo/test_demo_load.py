"""The demo starts every server, and its load gives way to others: a benchmark of the user stays clean."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest

from dflash_backend.control.contract import Action
from dflash_backend.core.errors import RefusedError
from dflash_backend.demo import load
from dflash_backend.demo.session import _bring_up

GIVES_WAY = 123456.0


async def test_the_load_waits_once_somebody_else_uses_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dflash_engine", "serve", "--model-path", "builtin:target"),
        *("--port", "0", "--enable-metrics"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    gave_way = asyncio.Event()
    pauses = 0
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if seconds == GIVES_WAY:
            gave_way.set()
            await asyncio.Event().wait()
        await real_sleep(0)

    tasks: list[asyncio.Task[object]] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            url, said = "", ""
            while "ready to roll" not in said:
                said = (await process.stdout.readline()).decode()
                assert said
                found = re.search(r"http://127\.0\.0\.1:\d+", said)
                url = found[0] if found else url
            tasks.append(asyncio.create_task(process.stdout.read()))
            monkeypatch.setattr(load, "QUIET_S", GIVES_WAY)
            monkeypatch.setattr(asyncio, "sleep", sleep)
            tasks.append(asyncio.create_task(load.keep_busy(url, seed=1, tokens=4)))
            while pauses < 3:  # its own requests do not make it wait
                await real_sleep(0.01)
            assert not gave_way.is_set()
            body = {"text": "def main", "sampling_params": {"max_new_tokens": 2}}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/generate", json=body) as response,
            ):
                assert response.status == 200
            await gave_way.wait()
    finally:
        monkeypatch.undo()
        for task in tasks[1:]:
            task.cancel()
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_server_of_which_nothing_is_known_yet_is_started_at_the_next_look() -> None:
    tries: list[str] = []

    async def plan(action: Action, server: str) -> str:
        return f"{action} {server}"

    async def execute(plan: str) -> AsyncIterator[str]:
        tries.append(plan)
        if len(tries) < 3:
            raise RefusedError("chain-2 is unknown: its state has to be known first")
        yield "ready"

    async def changes() -> AsyncIterator[int]:
        for number in itertools.count():
            yield number

    plane = SimpleNamespace(
        operator=SimpleNamespace(plan=plan, execute=execute), fleet=SimpleNamespace(changes=changes)
    )
    await _bring_up(plane, "chain-2")  # type: ignore[arg-type]
    assert tries == ["start chain-2"] * 3
