"""Everything behind the screens and the command line, put together once: the control plane of a console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dflash_backend.audit.badges import AuditKeeper
from dflash_backend.control.action_log import ActionLog
from dflash_backend.control.audits import WindowAudits
from dflash_backend.control.facts import FactsCache, HostFacts
from dflash_backend.control.host_facts import ask_host
from dflash_backend.control.operator import LocalOperator
from dflash_backend.control.planner import Planner
from dflash_backend.control.start_times import StartTimes
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.profile import Profile
from dflash_backend.profiles.store import ProfileStore
from dflash_backend.runs.service import HostRuns
from dflash_backend.ssh.connect import Settings
from dflash_backend.ssh.pool import SshPool
from dflash_backend.telemetry.fleet import Fleet


class ControlPlane:
    """Pool, fleet, runs, profiles and operator over one inventory. Nothing connects before it is needed."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        profiles: ProfileStore | None = None,
        ssh: Settings | None = None,
        read_only: bool = False,
    ) -> None:
        self.inventory = inventory
        self.profiles = profiles or ProfileStore.of(inventory)
        self.pool = SshPool(inventory.hosts, settings=ssh)
        self.fleet = Fleet(inventory, self.pool, self._profile_or_none)
        self.facts = FactsCache(self._ask)
        self.log = ActionLog()
        self.start_times = StartTimes()
        self._runs: dict[str, HostRuns] = {}
        planner = Planner(
            inventory=inventory,
            profiles=self.profiles,
            facts=self.facts,
            fleet=self.fleet,
            start_times=self.start_times,
        )
        self.window_audits = WindowAudits(
            inventory=inventory, pool=self.pool, fleet=self.fleet, planner=planner
        )
        planner.window_audit = self.window_audits.of_launch
        self.audits = AuditKeeper(self.window_audits.of_server, self.fleet.changes)
        self.fleet.audit = self.audits.summary
        self.operator = LocalOperator(
            inventory=inventory,
            fleet=self.fleet,
            planner=planner,
            runs=self.runs,
            log=self.log,
            start_times=self.start_times,
            read_only=read_only,
        )

    def runs(self, host: str) -> HostRuns:
        """The run service of a host; kept, because it knows which secrets to take out of logs."""
        if host not in self._runs:
            self._runs[host] = HostRuns(self.pool.link(host))
        return self._runs[host]

    async def _ask(self, host: str) -> HostFacts:
        return await ask_host(self.pool.link(host))

    def _profile_or_none(self, name: str) -> Profile | None:
        try:
            return self.profiles.load(name)
        except ConsoleError:
            # Shown where it is used: a row of the fleet is no place for a configuration error.
            return None

    async def close(self) -> None:
        """Ends watching and closes the connections; bounded in time. Runs go on."""
        await self.audits.close()
        await self.fleet.close()
        await self.pool.close()


@asynccontextmanager
async def control_plane(
    inventory: Inventory,
    *,
    ssh: Settings | None = None,
    read_only: bool = False,
    watch: bool = True,
    audits: bool = True,
) -> AsyncIterator[ControlPlane]:
    """A control plane that is closed at the end; ``watch`` starts the fleet, ``audits`` its window audits."""
    plane = ControlPlane(inventory, ssh=ssh, read_only=read_only)
    try:
        if watch:
            await plane.fleet.start()
            if audits:
                plane.audits.start()
        yield plane
    finally:
        await plane.close()
