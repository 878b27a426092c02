"""Whole runs against a real HTTP server: order of steps, clean and unclean cells, cancel, crash, results."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Script, ScriptedServer, serving

from dflash_backend.bench import cell as cell_module
from dflash_backend.bench.cell import CellProgress, CellResult
from dflash_backend.bench.job import Job, parse_job
from dflash_backend.bench.prompts import warm_up
from dflash_backend.bench.results import export_run, list_runs, load_run
from dflash_backend.bench.run import BenchRun, Event, RunStarted, RunSummary
from dflash_backend.core.errors import FailedError, UnreachableError, UsageError


def job(**changes: Any) -> Job:
    lines = {"requests": 6, "output_tokens": 8, "concurrency": [2], **changes}
    return parse_job(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items()), path="small.toml"
    )


async def run(
    script: Script, asked: Job, root: Path, **options: Any
) -> tuple[list[Event], RunSummary, ScriptedServer]:
    events: list[Event] = []
    async with serving(script) as (server, url):
        async for event in BenchRun(asked, url, "gpu1/a", results_root=root, **options).run():
            events.append(event)
    summary = events[-1]
    assert isinstance(summary, RunSummary)
    return events, summary, server


async def reasons(script: Script, root: Path, asked: Job | None = None, **options: Any) -> str:
    _, summary, _ = await run(script, asked or job(), root, **options)
    return "; ".join(summary.cells[0].unclean)


async def test_a_clean_cell(tmp_path: Path) -> None:
    events, summary, _ = await run(Script(), job(repeats=2), tmp_path)
    assert isinstance(events[0], RunStarted)
    assert events[0].settings.version == "0.5.14"
    assert summary.ok
    (cell,) = summary.cells
    assert (cell.requests, cell.failed, cell.unclean) == (12, 0, ())
    assert (cell.accept_length, cell.output_tokens) == (2.0, 96)
    assert cell.accept_histogram == (12, 0, 36)
    assert cell.finish == {"length": 12}
    assert cell.output_tok_s is not None
    assert cell.output_tok_s_mad is not None
    assert cell.ttft_ms is not None
    assert cell.ttft_ms.n == 12
    measuring = [e for e in events if isinstance(e, CellProgress) and e.phase == "measuring"]
    assert measuring[-1].done == measuring[-1].total == 6
    assert measuring[-1].accept_length == 2.0


async def test_as_many_requests_are_under_way_as_asked(tmp_path: Path) -> None:
    script = Script(gate=asyncio.Event())
    async with serving(script) as (server, url):
        asked = job(concurrency=[3], requests=7, warmup_requests=0)
        stream = BenchRun(asked, url, "s", results_root=tmp_path).run()
        task = asyncio.create_task(_all(stream))
        for _ in range(3):
            await server.first_chunks.get()
        assert script.gate is not None
        script.gate.set()
        events = await task
    assert isinstance(events[-1], RunSummary)
    assert server.most_in_flight == 3
    assert len(server.prompts) == 7


async def _all(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


async def test_flush_warm_up_flush_measure_in_each_repeat(tmp_path: Path) -> None:
    _, _, server = await run(Script(), job(repeats=2, requests=3), tmp_path)
    once = ["flush", "ask", "ask", "flush", "ask", "ask", "ask"]
    assert server.events == once * 2


async def test_every_prompt_begins_anew_and_warm_up_asks_something_else(tmp_path: Path) -> None:
    asked = job(requests=60, concurrency=[4])
    _, _, server = await run(Script(), asked, tmp_path)
    starts = [prompt.split("]")[0] for prompt in server.prompts]
    assert len(set(starts)) == len(starts) == 64
    texts = [prompt.split("] ", 1)[1] for prompt in server.prompts]
    assert set(texts[:4]) <= set(warm_up())
    assert set(texts[4:]) == set(asked.prompts)


@pytest.mark.parametrize(
    ("script", "part"),
    [
        (Script(cached=18), "prefix cache"),
        (Script(retractions=1), "retraction"),
        (Script(extra_tokens=100), "other traffic"),
        (Script(fail_status=500, fail_every=3), "requests failed"),
        (Script(loads=False), "does not tell its load"),
    ],
)
async def test_reasons_why_a_cell_is_not_clean(script: Script, part: str, tmp_path: Path) -> None:
    assert part in await reasons(script, tmp_path)


async def test_busy_server_and_refused_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "IDLE_TIMEOUT_S", 0.1)
    assert "other request" in await reasons(Script(busy=2), tmp_path)
    assert await reasons(Script(flush_refusals=2), tmp_path) == ""  # tried again until it worked


async def test_no_warm_up_and_wrong_length_are_said(tmp_path: Path) -> None:
    assert "no warm-up" in await reasons(Script(), tmp_path, job(warmup_requests=0))
    assert "do not have the 9 tokens" in await reasons(
        Script(), tmp_path, job(ignore_eos=True, output_tokens=9)
    )


async def test_compilation_in_the_log_is_seen(tmp_path: Path) -> None:
    script = Script(gate=asyncio.Event())
    lines: asyncio.Queue[list[str]] = asyncio.Queue()

    async def log() -> AsyncIterator[list[str]]:
        while True:
            yield await lines.get()
            lines.task_done()

    events: list[Event] = []
    async with serving(script) as (server, url):
        bench = BenchRun(job(warmup_requests=0, requests=2), url, "s", results_root=tmp_path, log_lines=log())
        async for event in bench.run():
            events.append(event)
            if isinstance(event, CellProgress) and event.phase == "measuring" and not event.done:
                await server.first_chunks.get()
                lines.put_nowait(["Triton kernel 'x' took 2.44 s to compile after serving started."])
                await lines.join()
                assert script.gate is not None
                script.gate.set()
    summary = events[-1]
    assert isinstance(summary, RunSummary)
    assert any("compiled" in reason for reason in summary.cells[0].unclean)
    assert not any("log was not watched" in note for note in summary.cells[0].notes)


async def test_without_metrics_a_cell_can_still_be_clean(tmp_path: Path) -> None:
    assert await reasons(Script(metrics=False), tmp_path) == ""


async def test_results_are_on_disk_as_they_finish(tmp_path: Path) -> None:
    seen: list[int] = []
    async with serving(Script()) as (_, url):
        async for event in BenchRun(job(concurrency=[1, 2, 3]), url, "gpu1/a", results_root=tmp_path).run():
            if isinstance(event, CellResult):
                (folder,) = tmp_path.iterdir()
                seen.append(len((folder / "cells.jsonl").read_text().splitlines()))
    assert seen == [1, 2, 3]
    (info,) = list_runs(root=tmp_path)
    assert (info.job, info.server, info.state, info.cells_done) == ("small", "gpu1/a", "finished", 3)
    whole = load_run(info.id[:15], root=tmp_path)
    assert [cell["concurrency"] for cell in whole.cells] == [1, 2, 3]
    assert all(cell["schema"] == 1 and cell["clean"] for cell in whole.cells)
    assert whole.head["schema"] == 1
    assert "ttft_ms" in whole.head["definitions"]  # type: ignore[operator]
    mode = (Path(info.folder) / "cells.jsonl").stat().st_mode & 0o777
    assert mode == 0o600


async def test_exports(tmp_path: Path) -> None:
    _, summary, _ = await run(Script(cached=18), job(concurrency=[1, 2]), tmp_path)
    table = export_run("last", "md", root=tmp_path)
    assert "| 2 |" in table
    assert "prefix cache" in table
    assert "Definitions" in table
    rows = list(csv.DictReader(io.StringIO(export_run(summary.run_id, "csv", root=tmp_path))))
    assert [row["concurrency"] for row in rows] == ["1", "2"]
    assert float(rows[0]["accept_length"]) == 2.0
    document = json.loads(export_run(summary.run_id, "json", root=tmp_path))
    assert (document["schema"], len(document["cells"])) == (1, 2)
    with pytest.raises(UsageError, match="no such format"):
        export_run("last", "pdf", root=tmp_path)


async def test_secrets_are_in_no_result(tmp_path: Path) -> None:
    script = Script(
        server_info={
            "api_key": "abcd-secret-1",
            "internal_states": [{"admin_api_key": "abcd-secret-2"}],
            "launch_command": "python -m sglang.launch_server --api-key abcd-secret-3",
        },
        fail_status=500,
        fail_every=4,
    )
    _, summary, server = await run(script, job(), tmp_path, api_key="abcd-secret-4")
    assert "Bearer abcd-secret-4" in server.headers
    written = "".join(p.read_text() for p in Path(summary.folder).iterdir())
    assert "abcd-secret" not in written + repr(summary) + export_run("last", "json", root=tmp_path)


async def test_cancel_keeps_finished_cells(tmp_path: Path) -> None:
    script = Script(gate=asyncio.Event())
    assert script.gate is not None
    script.gate.set()
    events: list[Event] = []
    async with serving(script) as (server, url):
        bench = BenchRun(job(concurrency=[1, 2, 3]), url, "s", results_root=tmp_path)
        async for event in bench.run():
            events.append(event)
            if isinstance(event, CellResult):
                script.gate.clear()
            if isinstance(event, CellProgress) and event.concurrency == 2 and event.phase == "warm-up":
                bench.cancel()
        await asyncio.wait_for(server.idle.wait(), 20)
    summary = events[-1]
    assert isinstance(summary, RunSummary)
    assert (summary.state, len(summary.cells), summary.ok) == ("cancelled", 1, False)
    (info,) = list_runs(root=tmp_path)
    assert (info.state, info.cells_done, info.cells_planned) == ("cancelled", 1, 3)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_in_the_middle_marks_the_run_and_ends_the_requests(tmp_path: Path, how: str) -> None:
    async with serving(Script(gate=asyncio.Event())) as (server, url):
        stream = BenchRun(job(), url, "s", results_root=tmp_path).run()

        async def consume() -> None:
            async for event in stream:
                if how == "close" and isinstance(event, CellProgress) and event.phase == "warm-up":
                    return

        task = asyncio.create_task(consume())
        await server.first_chunks.get()
        if how == "cancel":
            task.cancel()
        with pytest.raises(asyncio.CancelledError) if how == "cancel" else _nothing():
            await task
        await stream.aclose()
        await asyncio.wait_for(server.idle.wait(), 20)
    (info,) = list_runs(root=tmp_path)
    assert (info.state, info.cells_done) == ("cancelled", 0)


class _nothing:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    async with serving(Script()) as (_, url):
        pass
    with pytest.raises(UnreachableError) as caught:
        async for _ in BenchRun(job(), url, "s", results_root=tmp_path).run():
            pass
    assert caught.value.next_step
    assert list_runs(root=tmp_path) == ()


async def test_a_server_that_goes_away_ends_the_run_and_keeps_the_cells(tmp_path: Path) -> None:
    events: list[Event] = []
    async with serving(Script()) as (_, url):
        stream = BenchRun(job(concurrency=[1, 2]), url, "s", results_root=tmp_path).run()
        async for event in stream:
            events.append(event)
            if isinstance(event, CellResult):
                break
    async for event in stream:
        events.append(event)
    summary = events[-1]
    assert isinstance(summary, RunSummary)
    assert (summary.state, len(summary.cells)) == ("failed", 1)
    assert "no answer" in summary.message


async def test_skipped_cells_are_not_measured_again(tmp_path: Path) -> None:
    _, first, _ = await run(Script(), job(concurrency=[1, 2]), tmp_path)
    _, second, _ = await run(
        Script(), job(concurrency=[1, 2]), tmp_path, skip=frozenset({first.cells[0].key})
    )
    assert [cell.concurrency for cell in second.cells] == [2]
    assert second.cells[0].key == first.cells[1].key


async def test_address_may_be_opened_late(tmp_path: Path) -> None:
    async with serving(Script()) as (_, url):

        async def forward() -> str:
            return url

        events = [e async for e in BenchRun(job(), forward, "s", results_root=tmp_path).run()]
    assert isinstance(events[-1], RunSummary)
    assert events[-1].ok


async def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    async with serving(Script()) as (server, url):
        with pytest.raises(FailedError) as caught:
            async for _ in BenchRun(job(), url, "s", results_root=blocked).run():
                pass
        assert server.prompts == []
    assert caught.value.next_step


async def test_half_written_and_damaged_runs_are_still_listed(tmp_path: Path) -> None:
    _, summary, _ = await run(Script(), job(), tmp_path)
    with (Path(summary.folder) / "cells.jsonl").open("a") as stream:
        stream.write('{"schema": 1, "conc')
    head = json.loads((Path(summary.folder) / "run.json").read_text())
    (Path(summary.folder) / "run.json").write_text(json.dumps({**head, "state": "running", "pid": 2**22 + 1}))
    broken = tmp_path / "20200101-000000-abcdef"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    (tmp_path / "not-a-run").mkdir()
    newest, oldest = list_runs(root=tmp_path)
    assert (newest.interrupted, newest.cells_done) == (True, 1)
    assert (oldest.id, oldest.state) == (broken.name, "failed")
    assert any("interrupted" in note for note in load_run(summary.run_id, root=tmp_path).notes)
    with pytest.raises(UsageError, match="fits 2 runs"):
        load_run("20", root=tmp_path)
    with pytest.raises(UsageError, match="there is no run"):
        load_run("nope", root=tmp_path)
    assert list_runs(root=tmp_path / "none") == ()


async def test_what_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    async with serving(Script()) as (_, url):
        async for _ in BenchRun(job(), url, "=HYPERLINK(1)", results_root=tmp_path).run():
            pass
    (row,) = csv.DictReader(io.StringIO(export_run("last", "csv", root=tmp_path)))
    assert row["server"] == "'=HYPERLINK(1)"
