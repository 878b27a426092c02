"""The live fleet: one loop per host, one per server, and a snapshot of it all whenever something changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.inventory import Inventory, ServerConfig
from dflash_backend.core.profile import Profile
from dflash_backend.core.samples import AuditSummary, HostSample, RunStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import LinkState, ServerState
from dflash_backend.sglang.failure import explain_failure
from dflash_backend.ssh.link import HostPool
from dflash_backend.telemetry.broadcast import Newest
from dflash_backend.telemetry.compose import Known, compose
from dflash_backend.telemetry.contract import Mark, Series, SeriesName
from dflash_backend.telemetry.derive import HOST_SILENT_S, Facts, derive
from dflash_backend.telemetry.history import Chronicle
from dflash_backend.telemetry.host_watch import HostWatch
from dflash_backend.telemetry.server_poll import ServerPoller

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

POLL_S = 1.0
POLL_STARTING_S = 2.0
PUBLISH_S = 1.0
SPACING_S = 0.25
"""Snapshots at most four times a second: eight servers must not mean eight repaints."""
FIRST_SPACING_S = 0.05
FIRST_S = 3.0
"""For so long after the start everybody waits for the next snapshot."""
CLOSE_S = 5.0


@dataclass(slots=True)
class _Server:
    """What the fleet remembers of one server between rounds."""

    config: ServerConfig
    poller: ServerPoller
    run_id: str | None = None
    was_ready: bool = False
    draining: bool = False
    why: tuple[str, ...] = ()
    why_of: tuple[object, ...] = ()
    profile: Profile | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """The host told something that makes asking the server worth while at once."""
    listening: bool = False


class Fleet:
    """The live ``FleetView``. Connects through ``pool``, which it does not close.

    ``profiles_lookup`` gives the profile of a name or None; it is asked once per server and must not block.
    ``audit`` may be set to a function from a server's name to what the window audit said of it; it must not
    block.
    """

    def __init__(
        self,
        inventory: Inventory,
        pool: HostPool,
        profiles_lookup: Callable[[str], Profile | None] = lambda name: None,
        clock: Clock = wall,
        *,
        api_key: Callable[[str], str | None] = lambda server: None,
    ) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest: Newest[Snapshot] = Newest()
        self._dirty = asyncio.Event()
        self._chronicle = Chronicle()
        self.audit: Callable[[str], AuditSummary | None] = lambda server: None
        self._disabled = {name for name, host in inventory.hosts.items() if not host.enabled}
        self._hosts: dict[str, HostWatch] = {}
        for name in inventory.hosts:
            ports = [server.port for server in inventory.servers.values() if server.host == name]
            self._hosts[name] = HostWatch(pool.link(name), ports, changed=self._host_changed, clock=clock)
        self._servers: dict[str, _Server] = {}
        for name, config in inventory.servers.items():
            poller = ServerPoller(
                config,
                pool.link(config.host),
                self._client,
                clock=clock,
                api_key=lambda name=name: api_key(name),  # type: ignore[misc]
            )
            profile = profiles_lookup(config.profile) if config.profile else None
            self._servers[name] = _Server(config=config, poller=poller, profile=profile)

    # FleetView ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins watching. Returns at once."""
        if self._tasks:
            return
        # While the connection is being made there is time for what the first answers will need.
        self._spawn(asyncio.to_thread(_import_clients), "import")
        for name, watch in self._hosts.items():
            if name not in self._disabled:
                self._spawn(watch.run(), f"watch {name}")
        for place, (name, server) in enumerate(self._servers.items()):
            if server.config.host not in self._disabled:
                # Spread over the second after the first round, so that the work does not come in lumps.
                self._spawn(self._poll(server, place / len(self._servers)), f"poll {name}")
        self._spawn(self._publish(), "publish")

    async def close(self) -> None:
        """Stops watching; bounded in time. Readers of ``changes`` end."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._newest.close()

    def snapshot(self) -> Snapshot:
        """The fleet as it is known at this moment."""
        now = self._clock()
        return Snapshot(
            at=now,
            servers=tuple(self._view(server, now) for server in self._servers.values()),
            hosts=tuple(watch.link.status for watch in self._hosts.values()),
        )

    def series(
        self, server: str, name: SeriesName, *, since: float, points: int, gpu: int | None = None
    ) -> Series:
        """See ``FleetView.series``. ``gpu_memory_mib`` without ``gpu`` is the sum over the server's GPUs."""
        return self._chronicle.history.series(server, name, since=since, points=points, gpu=gpu)

    def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
        """Starts, stops, failures and changed settings of a server."""
        return self._chronicle.history.marks(server, since=since)

    def changes(self) -> AsyncIterator[Snapshot]:
        """Snapshots as they come, newest only."""
        return self._newest.read()

    # For actions ---------------------------------------------------------------------------------------

    def set_draining(self, server: str, draining: bool) -> None:
        """Says that an action waits for the server's requests to finish: it is shown as draining."""
        self._servers[server].draining = draining
        self._dirty.set()

    def refresh(self, server: str) -> None:
        """Settings of a running server were changed: they are read again in the next round."""
        self._servers[server].poller.refresh_settings()

    # Loops ---------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            # Connections are kept: each new one costs a channel of the SSH connection.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    async def _poll(self, server: _Server, delay: float) -> None:
        watch = self._hosts[server.config.host]
        while True:
            server.news.clear()
            try:
                await self._poll_once(server, watch)
            except Exception:
                # A fault of ours: this server shows no figures, the others go on.
                log.exception("polling %s failed", server.config.name)
                server.poller.silent("reading the server failed: see the console's log")
            self._dirty.set()
            # Counted from the end: a slow server is asked less often, never twice at once.
            pause = POLL_S if server.poller.answer.ready else POLL_STARTING_S
            if server.poller.figures is not None:
                pause, delay = pause + delay, 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await server.news.wait()

    async def _poll_once(self, server: _Server, watch: HostWatch) -> None:
        sample = watch.sample
        if watch.link.status.state is not LinkState.UP or (sample is None and not watch.problem):
            return  # the first tick says whose port it is, and whether anybody listens there
        fresh = sample is not None and self._clock() - sample.at <= HOST_SILENT_S
        if sample is not None and fresh and _closed(sample, server.config.port):
            server.poller.silent("nothing listens on the port")
            return
        run = self._run_of(server)
        await server.poller.poll(watch.log_of(run.run_id) if run is not None else None)

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await self._dirty.wait()
            except TimeoutError:
                pass  # ages go on also when nothing is told
            self._dirty.clear()
            try:
                snapshot = self.snapshot()
                self._advance(snapshot)
                self._newest.put(snapshot)
            except Exception:
                log.exception("making a snapshot failed")
            await asyncio.sleep(FIRST_SPACING_S if loop.time() - began < FIRST_S else SPACING_S)

    # From what is known to what is shown ---------------------------------------------------------------

    def _host_changed(self, host: str) -> None:
        for server in self._servers.values():
            if server.config.host == host:
                run = self._run_of(server)
                run_id = run.run_id if run is not None and run.alive else None
                if run_id != server.run_id:
                    # Another process, or none: what the port said before was said by the one before.
                    server.run_id = run_id
                    server.was_ready = False
                    server.poller.reset()
                sample = self._hosts[host].sample
                listening = sample is not None and not _closed(sample, server.config.port)
                if listening != server.listening:
                    server.listening = listening
                    server.news.set()
        self._dirty.set()

    def _run_of(self, server: _Server) -> RunStatus | None:
        """The living run of a server, else its newest one."""
        sample = self._hosts[server.config.host].sample
        if sample is None:
            return None
        runs = [run for run in sample.runs if run.server == server.config.name]
        return next((run for run in runs if run.alive), runs[0] if runs else None)

    def _why(self, server: _Server, run: RunStatus, watch: HostWatch) -> tuple[str, ...]:
        """Why a run failed, from its log; read again only when the log went on."""
        key = (run.run_id, run.exit_code, run.log_size)
        if server.why_of != key:
            run_log = watch.log_of(run.run_id)
            lines = run_log.lines if run_log is not None else ()
            failure = explain_failure(lines, exit_code=run.exit_code)
            if failure is not None:
                server.why = (failure.text, *failure.lines[:2])
            else:
                server.why = tuple(line for line in lines if line.strip())[-2:]
            server.why_of = key
        return server.why

    def _view(self, server: _Server, now: float) -> ServerSnapshot:
        config, watch, poller = server.config, self._hosts[server.config.host], server.poller
        sample, run = watch.sample, self._run_of(server)
        run_log = watch.log_of(run.run_id) if run is not None else None
        failed = run is not None and not run.alive and run.exit_code != 0 and run.stop_requested_at is None
        derived = derive(
            Facts(
                now=now,
                link=watch.link.status,
                host_at=sample.at if sample is not None else None,
                host_problem=watch.problem,
                run=run,
                listening=None
                if sample is None or "listening" in sample.notes
                else not _closed(sample, config.port),
                listener=sample.listening.get(config.port) if sample is not None else None,
                http=poller.answer,
                was_ready=server.was_ready,
                stage=run_log.stage if run_log is not None else None,
                why=self._why(server, run, watch) if run is not None and failed else (),
                draining=server.draining,
            )
        )
        return compose(
            Known(
                server=config,
                derived=derived,
                now=now,
                sample=sample,
                run=run,
                figures=poller.figures,
                settings=poller.settings,
                profile=server.profile,
                audit=self.audit(config.name),
                last_seen=watch.link.status.last_seen,
            )
        )

    def _advance(self, snapshot: Snapshot) -> None:
        """What is remembered from one snapshot to the next."""
        for seen in snapshot.servers:
            server = self._servers[seen.name]
            if seen.state is ServerState.READY:
                server.was_ready = True
        self._chronicle.add(snapshot)


def _import_clients() -> None:
    """Loads what takes long to load, off the event loop."""
    import aiohttp
    import prometheus_client.parser

    log.debug("loaded %s and %s", aiohttp.__name__, prometheus_client.parser.__name__)


def _closed(sample: HostSample, port: int) -> bool:
    """True when the host has looked at its ports and nothing listens on this one."""
    return "listening" not in sample.notes and port not in sample.listening
