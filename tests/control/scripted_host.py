"""A host that a test scripts: what the fleet shows, which runs there are, and what was done to them.

The operator's promises about order, races and clocks can only be met by a host that does the wrong thing at
exactly the wrong moment, which a real one does not do on request.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from dflash_backend.control.action_log import ActionLog
from dflash_backend.control.facts import FactsCache, HostFacts
from dflash_backend.control.operator import LocalOperator
from dflash_backend.control.planner import Planner
from dflash_backend.control.start_times import StartTimes
from dflash_backend.core.inventory import HostConfig, Inventory, ServerConfig
from dflash_backend.core.profile import Profile, Program
from dflash_backend.core.samples import (
    EffectiveSettings,
    LinkStatus,
    RunStatus,
    ServerFigures,
    ServerSnapshot,
    Snapshot,
)
from dflash_backend.core.states import LinkState, ServerState
from dflash_backend.runs.contract import LaunchSpec, StopReport
from dflash_backend.telemetry.contract import Mark, Series, SeriesName

PORT = 30000


class ScriptedHost:
    """Fleet, run service and profiles in one; ``done`` lists what was really done, in order."""

    def __init__(self, folder: Path, *, port: int = PORT, version: str = "0.5.14") -> None:
        self.inventory = Inventory(
            hosts={"gpu1": HostConfig(name="gpu1", address="gpu1")},
            servers={"a": ServerConfig(name="a", host="gpu1", port=port, profile="p")},
        )
        self.done: list[str] = []
        self.runs: list[RunStatus] = []
        self.now = ServerSnapshot(name="a", host="gpu1", port=port, state=ServerState.STOPPED, at=1.0)
        self.draining: list[bool] = []
        self.profile = Profile(name="p", target="t", program=Program.REFERENCE, ready_timeout_s=5.0)
        self.changed = asyncio.Event()
        self.clock = 1000.0
        self.log = ActionLog(folder / "actions.jsonl")
        times = StartTimes(folder / "times.json")

        async def ask(host: str) -> HostFacts:
            return HostFacts(host=host, python="python3", sglang_version=version)

        self.operator = LocalOperator(
            inventory=self.inventory,
            fleet=self,
            planner=Planner(
                inventory=self.inventory,
                profiles=self,
                facts=FactsCache(ask),
                fleet=self,
                start_times=times,
            ),
            runs=lambda host: self,
            log=self.log,
            start_times=times,
            clock=lambda: self.clock,
        )

    # What the test says -------------------------------------------------------------------------------

    def run(self, ident: str, *, alive: bool = True, by: str = "me@here") -> RunStatus:
        """A run of the server, from now on the newest."""
        made = RunStatus(
            run_id=ident, server="a", folder="/x", manager="setsid", profile=f"profile-{ident}",
            alive=alive, pid=1, started_by=by,
        )  # fmt: skip
        self.runs.insert(0, made)
        return made

    def show(self, state: ServerState, run: RunStatus | None = None, *, running: int | None = None) -> None:
        """What the fleet shows from now on."""
        figures = None if running is None else ServerFigures(server="a", at=1.0, running=running, queued=0)
        settings = EffectiveSettings() if state is ServerState.READY else None
        self.now = dataclasses.replace(
            self.now, state=state, run=run, figures=figures, settings=settings, message=""
        )
        self.changed.set()

    # FleetView ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        links = (LinkStatus(host="gpu1", state=LinkState.UP, since=0.0),)
        return Snapshot(at=self.clock, servers=(self.now,), hosts=links)

    async def changes(self) -> AsyncIterator[Snapshot]:
        while True:
            yield self.snapshot()
            await self.changed.wait()
            self.changed.clear()

    def set_draining(self, server: str, draining: bool) -> None:
        self.draining.append(draining)

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        return Series(name=name)

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        return ()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    # Profiles -----------------------------------------------------------------------------------------

    def load(self, name: str) -> Profile:
        return self.profile

    # RunService ---------------------------------------------------------------------------------------

    async def launch(self, spec: LaunchSpec) -> RunStatus:
        self.done.append("launch")
        made = self.run("new")
        self.show(ServerState.READY, made)
        return made

    async def list_runs(self) -> tuple[RunStatus, ...]:
        return tuple(self.runs)

    async def stop(self, run_id: str, *, grace_s: float = 60.0) -> StopReport:
        self.done.append(f"stop {run_id}")
        self.runs = [run for run in self.runs if run.run_id != run_id]
        return StopReport(
            run_id=run_id, exit_code=0, group_gone=True, gpu_free=None, port_free=True, killed=False,
            seconds=0.1,
        )  # fmt: skip

    async def adopt(self, *, server: str, port: int, profile: str = "", started_by: str = "") -> RunStatus:
        self.done.append(f"adopt by {started_by}")
        return self.run("adopted", by=started_by)

    async def follow_log(
        self, run_id: str, *, last_bytes: int = 65536, follow: bool = True, since_s: float | None = None
    ) -> AsyncGenerator[list[str], None]:
        yield []

    async def forget(self, run_id: str) -> None: ...
