"""One run of the demo: host up, servers launched by the ordinary operator, load on, everything gone after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress

from dflash_backend.control.contract import Action
from dflash_backend.control.plane import ControlPlane, control_plane
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.states import ServerState
from dflash_backend.demo.cluster import DemoCluster, cleaning, stale_roots
from dflash_backend.demo.load import keep_busy
from dflash_backend.ssh.connect import Settings
from dflash_backend.ssh.hostkeys import KnownHosts

STOP_S = 15.0
START_S = 120.0
"""So long a server of the demo is brought up at most."""


def _nothing(gone: bool) -> None:
    """Nobody wants to know."""


@asynccontextmanager
async def demo_session(
    servers: int,
    *,
    load: bool = True,
    read_only: bool = False,
    ended: Callable[[bool], None] = _nothing,
) -> AsyncIterator[ControlPlane]:
    """The control plane over a fresh demo cluster, at once; the servers start behind it.

    At the end, however it comes, the servers are stopped and the folder is removed; ``ended`` is told whether
    that is proven. What an earlier demo that was killed has left is cleaned up first.
    """
    await clean_up_stale()
    cluster = DemoCluster(servers)
    tasks: set[asyncio.Task[None]] = set()
    gone = True
    try:
        inventory = await cluster.open()
        settings = Settings(known_hosts=KnownHosts(cluster.known_hosts), config_files=())
        async with control_plane(inventory, ssh=settings, read_only=read_only) as plane:
            try:
                gone = False
                for number, name in enumerate(inventory.servers):
                    tasks.add(asyncio.create_task(_bring_up(plane, name)))
                    if load:
                        tasks.add(asyncio.create_task(_load(plane, name, number)))
                yield plane
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                gone = await asyncio.shield(stop_all(plane, inventory.hosts))
    finally:
        await cluster.close(remove=gone)
        ended(gone)


async def _bring_up(plane: ControlPlane, server: str) -> None:
    """Starts a server as a user would; a failure shows on the screen as it does for any server.

    Refused while nothing is known of the server yet, it waits for the next look at it.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            async for _ in plane.fleet.changes():
                with suppress(ConsoleError):
                    plan = await plane.operator.plan(Action.START, server)
                    async with aclosing(plane.operator.execute(plan)) as steps:
                        async for _ in steps:
                            pass
                    return


async def _load(plane: ControlPlane, server: str, seed: int) -> None:
    config = plane.inventory.servers[server]
    async for snapshot in plane.fleet.changes():
        now = snapshot.server(server)
        if now is not None and now.state is ServerState.READY:
            break
    port = await plane.pool.link(config.host).forward(config.port)
    await keep_busy(f"http://127.0.0.1:{port}", seed=seed)


async def stop_all(plane: ControlPlane, hosts: Iterable[str]) -> bool:
    """Stops every run on the demo's hosts, at once and within ``STOP_S``; True when none is left, proven."""
    gone = True
    for host in hosts:
        runs = plane.runs(host)
        left = True
        with suppress(ConsoleError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                alive = [run for run in await runs.list_runs() if run.alive or run.left]
                await asyncio.gather(
                    *(runs.stop(run.run_id, grace_s=3.0) for run in alive), return_exceptions=True
                )
                left = any(run.alive or run.left for run in await runs.list_runs())
        gone = gone and not left
    return gone


async def clean_up_stale() -> None:
    """Stops the servers of demos whose console was killed, and removes their folders.

    A folder goes only when its servers are gone: it is the way to find them again. Two demos that begin at
    once do not clean up together.
    """
    with cleaning() as alone:
        for root in stale_roots() if alone else ():
            cluster = DemoCluster(1, root)
            gone = False
            try:
                inventory = await cluster.open()
                settings = Settings(known_hosts=KnownHosts(cluster.known_hosts), config_files=())
                async with control_plane(inventory, ssh=settings, watch=False) as plane:
                    gone = await stop_all(plane, inventory.hosts)
            finally:
                await cluster.close(remove=gone)
