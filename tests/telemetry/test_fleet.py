"""The whole way: real sshd, real monitor, a real HTTP server in a run folder, and what the screens get."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hostrig import Run

from dflash_backend.core.inventory import Inventory, ServerConfig
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.core.samples import ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState
from dflash_backend.ssh.pool import SshPool
from dflash_backend.telemetry.fleet import Fleet
from rigs.sshd import Sshd, free_port, poll_until

HERE = Path(__file__).parent
CAPTURE = HERE.parent / "data" / "captures" / "sglang-0.5.14-cpu-dflash"
pytestmark = pytest.mark.sshd
TOML = 'target = "/m"\nalgorithm = "DDTREE"\nwindow = 2048\nbudget = 8\ntopk = 4\n'


class House:
    """A fleet over one sshd, with the means to make things happen on the host."""

    def __init__(self, sshd: Sshd, servers: dict[str, int], **options: Any) -> None:
        self.sshd = sshd
        self.ports = servers
        self.root = sshd.remote_home / ".local" / "state" / "dflash-console" / "runs"
        self.runs: list[Run] = []
        config = sshd.host_config(python=sys.executable)
        self.inventory = Inventory(
            hosts={config.name: config},
            servers={
                name: ServerConfig(name=name, host=config.name, port=port, profile="fast")
                for name, port in servers.items()
            },
        )
        self.pool = SshPool(self.inventory.hosts)
        self.fleet = Fleet(self.inventory, self.pool, **options)

    def serve(self, name: str, *, delay: float = 0.0, number: int = 1, **options: Any) -> Run:
        """Starts a captured server as a run of ``name``; with ``delay`` it listens only after that."""
        code = (
            f"import sys, time; time.sleep({delay}); sys.path.insert(0, {str(HERE)!r}); "
            f"sys.argv = ['x', '--port', '{self.ports[name]}', '--capture', {str(CAPTURE)!r}]; "
            "import captured_server; captured_server.main()"
        )
        run = Run(self.root, name, port=self.ports[name], code=code, number=number, **options)
        self.runs.append(run)
        return run

    async def set(self, name: str, **change: Any) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.ports[name]}/_set", data=json.dumps(change)) as response,
        ):
            assert response.status == 200

    async def until(
        self, name: str, condition: Callable[[ServerSnapshot], object], deadline: float = 30.0
    ) -> ServerSnapshot:
        """The first snapshot of a server for which ``condition`` holds."""
        seen: ServerSnapshot | None = None
        try:
            async with asyncio.timeout(deadline), aclosing(self.fleet.changes()) as changes:  # type: ignore[type-var]
                async for snapshot in changes:
                    seen = snapshot.server(name)
                    assert seen is not None
                    if condition(seen):
                        return seen
        except TimeoutError:
            pass
        raise AssertionError(f"not seen; last: {seen}")

    async def state(self, name: str, state: ServerState, deadline: float = 30.0) -> ServerSnapshot:
        return await self.until(name, lambda server: server.state is state, deadline)


@asynccontextmanager
async def house(sshd: Sshd, *names: str, **options: Any) -> AsyncIterator[House]:
    one = House(sshd, {name: free_port() for name in names}, **options)
    try:
        await one.fleet.start()
        yield one
    finally:
        async with asyncio.timeout(20):
            await one.fleet.close()
            await one.pool.close()
        for run in one.runs:
            run.close()


async def test_from_nothing_to_ready_to_killed(sshd: Sshd) -> None:
    profile = Profile(name="fast", target="/m", algorithm=Algorithm.DFLASH, window=512)
    async with house(sshd, "a", "idle", profiles_lookup={"fast": profile}.get) as home:
        stopped = await home.state("a", ServerState.STOPPED)
        # What would be launched is known, what runs is not.
        assert (stopped.profile, stopped.algorithm, stopped.window) == ("fast", Algorithm.DFLASH, 512)
        assert stopped.figures is None
        run = home.serve("a", delay=1.5, profile_toml=TOML)
        run.say("[2026-01-01 00:00:00] Load weight begin. avail mem=1.00 GB\n")
        run.say("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.00it/s]\n")
        starting = await home.until("a", lambda s: s.stage is not None and s.stage.total)
        assert starting.state is ServerState.STARTING
        assert starting.stage is not None
        assert starting.stage.text() == "weights 2/4"
        assert (starting.algorithm, starting.window, starting.budget, starting.topk) == (
            Algorithm.DDTREE, 2048, 8, 4,
        )  # fmt: skip
        ready = await home.until("a", lambda s: s.settings)
        assert ready.state is ServerState.READY
        # The running server's own word beats the profile's.
        assert ready.algorithm is Algorithm.DFLASH
        assert ready.rss_mib is not None
        assert ready.rss_mib > 5
        await home.set("a", running=2, grow={"realtime_tokens_total/decode": 120.0})
        busy = await home.until("a", lambda s: s.figures and (s.figures.decode_tok_s or 0) > 60)
        assert busy.figures is not None
        assert busy.figures.decode_source == "counter"
        assert busy.figures.running == 2

        def highest(_: ServerSnapshot) -> float:
            series = home.fleet.series("a", "decode_tok_s", since=0, points=100)
            return max((value for value in series.values if value is not None), default=0.0)

        await home.until("a", lambda s: highest(s) > 60)
        os.kill(run.process.pid, 9)
        run.process.wait()
        gone = await home.state("a", ServerState.FAILED, deadline=10)
        assert "exit code unknown" in gone.message
        run.record_exit(137)
        killed = await home.until("a", lambda s: "137" in s.message)
        assert killed.figures is None
        await home.until(
            "a", lambda s: home.fleet.series("a", "rss_mib", since=0, points=99).values[-1] is None
        )
        assert killed.rss_mib is None
        assert killed.run is not None
        assert "shards" in killed.run.log_tail
        # History: the series has the rate and a gap after it; the axis has what happened.
        await home.until(
            "a", lambda s: home.fleet.series("a", "decode_tok_s", since=0, points=100).values[-1] is None
        )
        assert [mark.text for mark in home.fleet.marks("a", since=0)] == ["start fast", "ready", "failed"]
        assert home.fleet.snapshot().server("idle") is not None
        untouched = home.fleet.snapshot().server("idle")
        assert untouched is not None
        assert untouched.state is ServerState.STOPPED


async def test_a_failed_start_says_why(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        run = Run(home.root, "a", code="raise SystemExit(1)")
        home.runs.append(run)
        run.say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        run.process.wait()
        run.record_exit(1)
        failed = await home.until("a", lambda s: s.state is ServerState.FAILED and "exit 1" in s.message)
        assert "memory" in failed.message.lower()


async def test_a_server_that_we_did_not_start_is_foreign(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        await home.state("a", ServerState.STOPPED)
        other = home.serve("a")
        for name in ("run.json", "pid"):
            (other.folder / name).unlink()
        foreign = await home.until("a", lambda s: s.state is ServerState.FOREIGN and s.settings)
        assert f"pid {other.process.pid}" in foreign.message
        assert foreign.run is None
        assert foreign.profile is None
        assert foreign.figures is not None
        assert foreign.algorithm is Algorithm.DFLASH


async def test_stop_is_draining_then_stopping_then_stopped(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        run = home.serve("a")
        await home.state("a", ServerState.READY)
        home.fleet.set_draining("a", True)
        await home.state("a", ServerState.DRAINING)
        home.fleet.set_draining("a", False)
        await home.state("a", ServerState.READY)
        await home.set("a", running=2)
        await home.until("a", lambda s: s.figures and s.figures.running == 2)
        run.ask_stop()
        draining = await home.state("a", ServerState.DRAINING)
        assert "2 requests left" in draining.message
        await home.set("a", running=0)
        await home.state("a", ServerState.STOPPING)
        run.process.terminate()
        run.process.wait()
        run.record_exit(143)
        stopped = await home.until("a", lambda s: s.state is ServerState.STOPPED and "143" in s.message)
        assert stopped.message.startswith("stopped")


async def test_a_frozen_host_is_unreachable_with_its_age_and_comes_back(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        home.serve("a")
        await home.until("a", lambda s: s.figures)
        sshd.freeze()
        try:
            lost = await home.state("a", ServerState.UNREACHABLE, deadline=20)
            assert "last seen" in lost.message
            assert lost.figures is None
            assert lost.gpus == ()
            assert lost.at is not None
            older = await home.until(
                "a", lambda s: s.state is ServerState.UNREACHABLE and "10 s ago" in s.message
            )
            assert older.at == lost.at
            assert home.fleet.series("a", "decode_tok_s", since=0, points=9999).values[-1] is None
        finally:
            sshd.thaw()
        back = await home.state("a", ServerState.READY)
        # It is the same run: back is no start.
        assert [m.text for m in home.fleet.marks("a", since=0) if m.text.startswith("start")] == [
            "start fast"
        ]
        assert back.run is not None


async def test_a_dropped_connection_is_picked_up_again(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        home.serve("a")
        await home.until("a", lambda s: s.figures)
        sshd.drop_connections()
        await home.state("a", ServerState.UNREACHABLE)
        await home.until("a", lambda s: s.state is ServerState.READY and s.figures)


async def test_a_host_without_python_says_so(sshd: Sshd) -> None:
    config = sshd.host_config(python="/nowhere/venv")
    inventory = Inventory(
        hosts={config.name: config},
        servers={"a": ServerConfig(name="a", host=config.name, port=free_port())},
    )
    pool = SshPool(inventory.hosts)
    fleet = Fleet(inventory, pool)
    await fleet.start()
    try:
        async with asyncio.timeout(20):
            async for snapshot in fleet.changes():
                (server,) = snapshot.servers
                if "interpreter" in server.message:
                    break
        assert server.state is ServerState.UNKNOWN
        assert "/nowhere/venv" in server.message
        assert server.at is not None
    finally:
        await fleet.close()
        await pool.close()


async def test_a_disabled_host_is_left_alone(sshd: Sshd) -> None:
    config = sshd.host_config(enabled=False)
    inventory = Inventory(
        hosts={config.name: config}, servers={"a": ServerConfig(name="a", host=config.name, port=1)}
    )
    pool = SshPool(inventory.hosts)
    fleet = Fleet(inventory, pool)
    await fleet.start()
    async for snapshot in fleet.changes():
        assert snapshot.servers[0].state is ServerState.UNKNOWN
        assert "disabled" in snapshot.servers[0].message
        break
    await fleet.close()
    await pool.close()
    assert "Accepted publickey" not in sshd.log.read_text(errors="replace")


async def test_one_slow_server_does_not_delay_the_others(sshd: Sshd) -> None:
    async with house(sshd, "slow", "quick") as home:
        home.serve("slow", number=1)
        home.serve("quick", number=2)
        for name in ("slow", "quick"):
            await home.until(name, lambda s: s.figures)
        await home.set("slow", delays=dict.fromkeys(("/v1/loads", "/metrics", "/v1/models"), 60))
        await home.until("slow", lambda s: s.figures is None)
        began = home.fleet.snapshot().at
        times = set()

        def collect(server: ServerSnapshot) -> bool:
            assert server.figures is not None
            times.add(server.figures.at)
            return len(times) >= 5

        await home.until("quick", collect)
        # Five rounds of a server at 1 Hz while each round of the other takes several seconds.
        assert max(times) - began < 15
        slow = home.fleet.snapshot().server("slow")
        assert slow is not None
        assert slow.state in (ServerState.READY, ServerState.UNREACHABLE)


async def test_closing_leaves_nothing_on_the_host(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        await home.state("a", ServerState.STOPPED)
        assert sshd.commands()
    poll_until(lambda: not sshd.commands(), what="the end of everything that ran on the host")
    assert not home.root.exists()


async def test_a_slow_reader_of_changes_skips(sshd: Sshd) -> None:
    async with house(sshd, "a") as home:
        changes = home.fleet.changes()
        first = await anext(changes)
        seen: list[Snapshot] = []

        async def other() -> None:
            async for snapshot in home.fleet.changes():
                seen.append(snapshot)
                if len(seen) == 4:
                    return

        await other()
        newest = await anext(changes)
        assert newest is seen[-1]
        assert newest is not first
