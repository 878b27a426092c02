"""A benchmark against a configured server: allowed, logged, over the forward, with the log watched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from dflash_backend.bench.job import Job
from dflash_backend.bench.run import BenchRun, Event, RunStarted, RunSummary
from dflash_backend.control.contract import Action
from dflash_backend.control.plane import ControlPlane
from dflash_backend.core.errors import RefusedError
from dflash_backend.core.samples import ServerSnapshot


class ServerBench:
    """One run of a job on one server of the plane. ``cancel`` keeps the cells that are finished."""

    def __init__(self, plane: ControlPlane, job: Job, server: str) -> None:
        """Raises RefusedError when a benchmark of this server is not allowed now."""
        decision = plane.operator.decide(Action.BENCH, server)
        if not decision.allowed:
            raise RefusedError(decision.reason, where=server, unchanged="nothing was sent")
        self._plane = plane
        self._job = job
        self._server = server
        config = plane.inventory.servers[server]
        self._host = config.host
        now = plane.fleet.snapshot().server(server)
        link = plane.pool.link(config.host)

        async def address() -> str:
            return f"http://127.0.0.1:{await link.forward(config.port)}"

        self._run = BenchRun(
            job,
            address,
            server,
            log_lines=self._log(now),
            machine=machine(now),
            profile=(now.profile or "") if now is not None else "",
        )

    def _log(self, now: ServerSnapshot | None) -> AsyncIterator[list[str]] | None:
        if now is None or now.run is None or not now.run.alive:
            return None
        return self._plane.runs(self._host).follow_log(now.run.run_id, last_bytes=0)

    def cancel(self) -> None:
        """Gives up the running cell; a summary still comes."""
        self._run.cancel()

    async def events(self) -> AsyncGenerator[Event, None]:
        """See ``BenchRun.run``; begin and end are in the action log."""
        log, action = self._plane.log, Action.BENCH
        details = {"job": self._job.name, "concurrency": list(self._job.concurrency)}
        ident = log.begin(action, server=self._server, host=self._host, details=details)
        ended: dict[str, object] = {"summary": "interrupted"}
        ok = False
        try:
            async with aclosing(self._run.run()) as events:
                async for event in events:
                    if isinstance(event, RunStarted):
                        ended["run"] = event.run_id
                    if isinstance(event, RunSummary):
                        ok = event.ok
                        ended["summary"] = event.message or event.state
                    yield event
        finally:
            log.end(ident, action, server=self._server, host=self._host, ok=ok, details=ended)


def machine(now: ServerSnapshot | None) -> dict[str, object]:
    """What a result says of the machine behind the server."""
    if now is None:
        return {}
    return {
        "host": now.host,
        "gpus": [gpu.name for gpu in now.gpus],
        "gpu_note": now.gpu_note,
        "other_gpu_processes": sum(len(gpu.processes) for gpu in now.gpus) if now.run is None else None,
    }
