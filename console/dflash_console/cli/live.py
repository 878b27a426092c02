"""A watched part of the inventory for one command: started, settled, closed."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dflash_backend.core.errors import RefusedError, UnreachableError, UsageError
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.samples import LinkStatus, Snapshot
from dflash_backend.core.states import LinkState, ServerState

if TYPE_CHECKING:
    from dflash_backend.control.plane import ControlPlane
    from dflash_backend.telemetry.contract import FleetView
    from dflash_console.cli.command import Context

SETTLE_S = 10.0
"""How long one command waits until it knows the state of what it is about."""
SPACING_S = 0.9
"""Seconds between two snapshots of a stream: a little under the second in which the fleet is read."""


def part_of(inventory: Inventory, servers: Sequence[str]) -> Inventory:
    """The inventory without what a command does not touch; all of it when no server is named.

    Raises UsageError for an unknown server, with the nearest name.
    """
    for name in servers:
        if name not in inventory.servers:
            near = difflib.get_close_matches(name, list(inventory.servers), n=1)
            known = ", ".join(inventory.servers)
            raise UsageError(
                f"there is no server {name!r} in the configuration",
                where=inventory.path,
                next_step=f"did you mean {near[0]!r}?"
                if near
                else f"servers: {known or 'none is configured'}",
            )
    if not servers:
        return inventory
    kept = {name: server for name, server in inventory.servers.items() if name in servers}
    hosts = {server.host for server in kept.values()}
    return dataclasses.replace(
        inventory,
        servers=kept,
        hosts={name: host for name, host in inventory.hosts.items() if name in hosts},
    )


@asynccontextmanager
async def watching(
    context: Context, servers: Sequence[str], *, settle: bool = True, audits: bool = False
) -> AsyncIterator[ControlPlane]:
    """A running control plane over the named servers (none named: all), states known where possible.

    ``audits``: servers that get ready are audited by themselves; a command that acts has no use for it.
    """
    from dflash_backend.control.plane import control_plane

    inventory = part_of(context.inventory, servers)
    async with control_plane(inventory, read_only=context.read_only, audits=audits) as plane:
        if settle:
            await settled(plane)
        yield plane


async def settled(plane: ControlPlane, timeout: float = SETTLE_S) -> Snapshot:
    """The first snapshot in which every server's state is known, or the newest after ``timeout`` seconds.

    A host that cannot be reached is known, once its first attempt has failed.
    """
    newest = plane.fleet.snapshot()
    try:
        async with asyncio.timeout(timeout):
            async for newest in plane.fleet.changes():
                if _known(newest):
                    break
    except TimeoutError:
        pass
    return newest


async def once_a_second(fleet: FleetView) -> AsyncIterator[Snapshot]:
    """Snapshots as they come, one a second at most, whatever is done to the clock."""
    last: float | None = None
    async for snapshot in fleet.changes():
        now = time.monotonic()
        if last is None or now - last >= SPACING_S:
            last = now
            yield snapshot


def _known(snapshot: Snapshot) -> bool:
    from dflash_backend.telemetry.derive import NOT_YET

    links = {link.host: link for link in snapshot.hosts}
    for server in snapshot.servers:
        link = links.get(server.host)
        if link is not None and link.state is LinkState.CONNECTING:
            return False
        waiting = link is not None and link.state is LinkState.UP
        unknown = server.state is ServerState.UNKNOWN and server.message in NOT_YET
        if waiting and (unknown or _half_read(server.state, server.figures)):
            return False
    return True


def _half_read(state: ServerState, figures: object) -> bool:
    return state in (ServerState.READY, ServerState.FOREIGN) and figures is None


def demand_host(snapshot: Snapshot, host: str) -> None:
    """Raises the error that stands between us and a host: unreachable (3) or refused (4). Else nothing."""
    link = next((one for one in snapshot.hosts if one.host == host), None)
    if link is None or link.state is LinkState.UP:
        return
    raise link_error(link)


def link_error(link: LinkStatus) -> RefusedError | UnreachableError:
    """A connection's state as an error."""
    where = f"host {link.host}"
    text = link.message or str(link.state)
    if link.state is LinkState.CONNECTING:
        text = f"no connection within {SETTLE_S:.0f} s"
    match link.state:
        case LinkState.KEY_UNKNOWN:
            step = f"compare the fingerprint, then: dflash-console hosts trust {link.host}"
            return RefusedError(text, where=where, next_step=step)
        case LinkState.KEY_CHANGED | LinkState.AUTH_FAILED | LinkState.CONFIG_ERROR | LinkState.DISABLED:
            step = f"dflash-console hosts check {link.host}"
            return RefusedError(text, where=where, next_step=step)
        case _:
            step = f"dflash-console hosts check {link.host} says more; servers there are left as they are"
            return UnreachableError(text, where=where, next_step=step)
