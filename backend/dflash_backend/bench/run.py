"""Runs a job against one server: progress as it goes, each finished cell kept, cancel at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_backend.bench.cell import CellProgress, CellResult, CellRunner
from dflash_backend.bench.client import open_session
from dflash_backend.bench.guards import LogWatch
from dflash_backend.bench.job import Job
from dflash_backend.bench.results import ResultWriter, RunState
from dflash_backend.bench.server import BenchServer, settings_digest
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import EffectiveSettings
from dflash_backend.sglang.server_info import ServerInfo

Address = str | Callable[[], Awaitable[str]]
"""Where the server answers: ``http://127.0.0.1:PORT``, or what gives that (an SSH forward being opened)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first event: what will be measured, and where the results go."""

    run_id: str
    folder: str
    job: str
    server: str
    cells: tuple[tuple[str, int], ...]
    """(key, concurrency) in the order of measuring."""
    settings: EffectiveSettings
    algorithm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The last event. ``ok``: all cells measured, none of them unclean."""

    run_id: str
    folder: str
    state: RunState
    cells: tuple[CellResult, ...] = ()
    planned: int = 0
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "finished" and all(cell.clean for cell in self.cells)


Event = RunStarted | CellProgress | CellResult | RunSummary


class BenchRun:
    """One run of a job against one server.

    ``log_lines`` are the server's log lines from now on, to see compilation and retractions. ``machine`` is
    what is known of the server's machine (GPUs, driver); it is stored with the result. ``skip`` are keys of
    cells that need not be measured again. A run object runs once.
    """

    def __init__(
        self,
        job: Job,
        base_url: Address,
        server_name: str,
        *,
        api_key: str | None = None,
        log_lines: AsyncIterator[list[str]] | None = None,
        machine: Mapping[str, object] | None = None,
        profile: str = "",
        skip: frozenset[str] = frozenset(),
        results_root: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._base_url = base_url
        self._server_name = server_name
        self._api_key = api_key
        self._log_lines = log_lines
        self._machine = dict(machine or {})
        self._profile = profile
        self._skip = skip
        self._root = results_root
        self._clock = clock
        self._cell: asyncio.Task[CellResult] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Stops soon: the running cell is given up, finished ones are kept, a RunSummary still comes."""
        self._cancelled = True
        if self._cell is not None:
            self._cell.cancel()

    async def run(self) -> AsyncGenerator[Event]:
        """Measures every cell; yields RunStarted, then progress and results, and a RunSummary at the end.

        Raises UnreachableError or FormatError before RunStarted when the server cannot be asked what it
        runs, FailedError when results cannot be written. Closing the iterator or cancelling its task gives
        up the running cell and marks the run cancelled.
        """
        address = self._base_url if isinstance(self._base_url, str) else await self._base_url()
        async with open_session(api_key=self._api_key) as session, LogWatch(self._log_lines) as log:
            server = BenchServer(session, address)
            info = await server.info()
            model = "default" if self._job.route == "generate" else await server.model()
            digest = settings_digest(info.settings)
            plan = [
                (key, concurrency)
                for concurrency in self._job.concurrency
                if (key := self._job.cell_key(concurrency, digest)) not in self._skip
            ]
            writer = ResultWriter(self._head(info, digest, len(plan)), root=self._root)
            done: list[CellResult] = []
            state: RunState = "cancelled"
            message = "the console ended or gave up in the middle"
            try:
                yield RunStarted(
                    run_id=writer.id,
                    folder=str(writer.folder),
                    job=self._job.name,
                    server=self._server_name,
                    cells=tuple(plan),
                    settings=info.settings,
                    algorithm=info.settings.algorithm,
                )
                for index, (key, concurrency) in enumerate(plan):
                    if self._cancelled:
                        break
                    events: asyncio.Queue[CellProgress] = asyncio.Queue()
                    runner = CellRunner(
                        self._job,
                        concurrency,
                        key=key,
                        session=session,
                        server=server,
                        model=model,
                        log=log,
                        report=events.put_nowait,
                        index=index,
                        cells=len(plan),
                        clock=self._clock,
                    )
                    self._cell = asyncio.create_task(runner.run())
                    async with contextlib.aclosing(_until(self._cell, events)) as steps:
                        async for progress in steps:
                            yield progress
                    if self._cell.cancelled():
                        break
                    result = self._cell.result()
                    writer.add(result)
                    done.append(result)
                    yield result
                if self._cancelled:
                    message = f"cancelled after {len(done)} of {len(plan)} cells"
                else:
                    state, message = "finished", ""
            except ConsoleError as error:
                state, message = "failed", error.what
            finally:
                await self._give_up()
                with contextlib.suppress(ConsoleError):  # the disk is full: what was written stays
                    writer.finish(state, message, at=self._clock())
            yield RunSummary(
                run_id=writer.id,
                folder=str(writer.folder),
                state=state,
                cells=tuple(done),
                planned=len(plan),
                message=message,
            )

    async def _give_up(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None and not cell.done():
            cell.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConsoleError):
                await cell

    def _head(self, info: ServerInfo, digest: str, planned: int) -> dict[str, object]:
        settings = asdict(info.settings)
        return {
            "started_at": self._clock(),
            "job": self._job.settings(),
            "job_file": self._job.origin,
            "server": self._server_name,
            "profile": self._profile,
            "cells_planned": planned,
            "server_digest": digest,
            "server_info": {
                "settings": settings,
                "launch_command": info.launch_command,
                "replicas": len(info.states),
            },
            "machine": self._machine,
            "client": {
                "host": platform.node(),
                "system": platform.platform(),
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
            },
        }


async def _until(
    task: asyncio.Task[CellResult], events: asyncio.Queue[CellProgress]
) -> AsyncGenerator[CellProgress]:
    """Progress until the task is over; only the newest when several have piled up."""
    while not task.done() or not events.empty():
        getter = asyncio.create_task(events.get())
        try:
            await asyncio.wait({task, getter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not getter.done():
                getter.cancel()
        if getter.done() and not getter.cancelled():
            newest = getter.result()
            while not events.empty():
                newest = events.get_nowait()
            yield newest
