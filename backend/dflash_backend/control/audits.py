"""Window audits of the configured servers: over which connection, with which would-be launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from dflash_backend.audit.collect import Collected, Wanted, collect
from dflash_backend.audit.live import Launch, LiveAudit, audit_server, basis_of
from dflash_backend.audit.report import AuditReport
from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConsoleError, UsageError
from dflash_backend.core.inventory import Inventory, ServerConfig
from dflash_backend.core.states import ServerState
from dflash_backend.ssh.link import HostLink, HostPool
from dflash_backend.telemetry.contract import FleetView

_KEEP_S = 120.0
"""Going through a list of profiles must not bring the same sources again for each of them."""


class Launches(Protocol):
    """Says what a server's profile would launch."""

    async def launch(self, server: str) -> Launch | None:
        """None when the configuration names no profile. Raises ConsoleError."""
        ...


class WindowAudits:
    """Audits by the names of the inventory."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        pool: HostPool,
        fleet: FleetView,
        planner: Launches,
        clock: Clock = wall,
    ) -> None:
        self._inventory = inventory
        self._pool = pool
        self._fleet = fleet
        self._planner = planner
        self._clock = clock
        self._brought: dict[tuple[str, ...], tuple[float, Collected]] = {}

    async def of_server(self, server: str) -> LiveAudit:
        """What runs now, else what would be launched.

        Raises UsageError, ConfigError and what the connection raises.
        """
        config = self._inventory.servers.get(server)
        if config is None:
            raise UsageError(f"there is no server {server!r} in the configuration")
        now = self._fleet.snapshot().server(server)
        launch = None
        if now is None or now.state in (ServerState.STOPPED, ServerState.FAILED, ServerState.UNKNOWN):
            try:
                launch = await self._planner.launch(server)
            except ConsoleError:
                if basis_of(now, None) != "run":
                    raise
        return await audit_server(config, self._pool.link(config.host), now, launch=launch)

    async def of_launch(self, config: ServerConfig, launch: Launch) -> AuditReport:
        """What a command would do with the drafter's windows if it were launched now."""
        link = self._pool.link(config.host)
        audit = await audit_server(config, link, None, launch=launch, collector=self._kept)
        return audit.report

    def forget(self, host: str) -> None:
        """Something was installed there: what was read is not true any more."""
        self._brought = {key: value for key, value in self._brought.items() if key[0] != host}

    async def _kept(self, link: HostLink, wanted: Wanted) -> Collected:
        key = (link.config.name, *wanted.argv[:1], *_models(wanted), repr(wanted.env))
        kept = self._brought.get(key)
        if kept is not None and self._clock() - kept[0] < _KEEP_S:
            return kept[1]
        found = await collect(link, replace(wanted, log=None))
        self._brought[key] = (self._clock(), found)
        return found


def _models(wanted: Wanted) -> list[str]:
    """The words of a command line that decide which files are read."""
    words = list(wanted.argv)
    names = ("--model", "--revision", "--speculative-draft-model")
    return [
        part
        for place, word in enumerate(words)
        if word.startswith(names)
        for part in words[place : place + 2]
    ]
