"""A small job against the reference engine in a process of its own: real tokens, real speculation."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dflash_backend.bench.job import parse_job
from dflash_backend.bench.results import load_run
from dflash_backend.bench.run import BenchRun, Event, RunSummary
from dflash_backend.core.profile import Algorithm


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    """Address of a DFLASH engine on a free port."""
    options = (
        "--model-path builtin:target --port 0 --enable-metrics "
        "--speculative-algorithm DFLASH --speculative-draft-model-path builtin:drafter"
    )
    command = [sys.executable, "-m", "dflash_engine", "serve", *options.split()]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    drain: asyncio.Task[bytes] | None = None
    try:
        assert process.stdout is not None
        said = ""
        async with asyncio.timeout(120):
            address = None
            while "ready to roll" not in said:
                line = (await process.stdout.readline()).decode()
                assert line, said
                said += line
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
                address = found[0] if found else address
        assert address is not None, said
        drain = asyncio.create_task(process.stdout.read())
        yield address
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if drain is not None:
            await drain


@pytest.mark.parametrize("route", ["generate", "chat"])
async def test_cells_of_a_real_engine(engine: str, route: str, tmp_path: Path) -> None:
    asked = parse_job(
        f'concurrency = [1, 2]\nrequests = 2\nwarmup_requests = 1\noutput_tokens = 16\nroute = "{route}"'
    )
    events: list[Event] = [
        event async for event in BenchRun(asked, engine, "engine", results_root=tmp_path).run()
    ]
    summary = events[-1]
    assert isinstance(summary, RunSummary)
    assert summary.state == "finished"
    for cell in summary.cells:
        assert (cell.failed, cell.requests) == (0, 2)
        assert cell.accept_length is not None
        assert 1.0 <= cell.accept_length <= 16.0
        assert sum(cell.accept_histogram) == sum(row.verify_ct or 0 for row in cell.rows)
        assert all(row.cached_tokens in (0, None) for row in cell.rows)
        assert not [reason for reason in cell.unclean if "busy for" not in reason]
        assert cell.output_tokens <= 32
    run = load_run(summary.run_id, root=tmp_path)
    settings = run.head["server_info"]["settings"]  # type: ignore[index]
    assert settings["algorithm"] == Algorithm.DFLASH
