"""Figures of the telemetry: what watching costs on the host and in the console, how fast a log is followed.

    python benchmarks/telemetry.py [--seconds 30] [--repeat 3] [--only monitor|console|log]

Needs OpenSSH's sshd on this machine (see tests/rigs/sshd.py) and the test extra. Everything runs on loopback:
eight real HTTP servers with captured SGLang pages, one sshd, the real monitor. CPU is that of the named
process alone, in percent of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS = REPOSITORY / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "telemetry")]

from hostrig import MonitorProcess, Run  # noqa: E402

from dflash_backend.core.inventory import Inventory, ServerConfig  # noqa: E402
from dflash_backend.core.states import ServerState  # noqa: E402
from dflash_backend.runs.service import HostRuns  # noqa: E402
from dflash_backend.ssh.pool import SshPool  # noqa: E402
from dflash_backend.telemetry.fleet import Fleet  # noqa: E402
from rigs.sshd import Sshd, free_port  # noqa: E402

CAPTURE = TESTS / "data" / "captures" / "sglang-0.5.14-cpu-dflash"
SERVERS = 8
LINE = (
    "[2026-01-01 00:00:00] Decode batch, #running-req: 1, #token: 192, token usage: 0.02, accept len: 3.10, \
cuda graph: True, gen throughput (token/s): 121.80, #queue-req: 0\n"
)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def eight_runs(root: Path, ports: list[int]) -> Iterator[list[Run]]:
    """Runs with a living process each, the first of which serves captured pages on all ports."""
    serve = (
        f"import sys, asyncio; sys.path.insert(0, {str(TESTS / 'telemetry')!r})\n"
        "from pathlib import Path\nfrom aiohttp import web\nfrom captured_server import Server\n"
        "async def main():\n"
        f"    for port in {ports!r}:\n"
        f"        server = Server(Path({str(CAPTURE)!r}))\n"
        "        server.grow = {'realtime_tokens_total/decode': 120.0}\n"
        "        server.state['running'] = 2\n"
        "        runner = web.AppRunner(server.app(), access_log=None)\n"
        "        await runner.setup()\n"
        "        await web.TCPSite(runner, '127.0.0.1', port).start()\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    runs = []
    try:
        for number, port in enumerate(ports):
            code = serve if number == 0 else "import sys; sys.stdin.read()"
            runs.append(Run(root, f"server{number}", number=number + 1, port=port, code=code))
        yield runs
    finally:
        for run in runs:
            run.close()


def measure_monitor(seconds: float) -> tuple[float, float]:
    """CPU percent and MiB of the monitor at 1 Hz: eight runs whose logs grow, eight watched ports."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        ports = [free_port() for _ in range(SERVERS)]
        with (
            eight_runs(root, ports) as runs,
            MonitorProcess({"root": str(root), "ports": ports, "interval": 1.0}) as monitor,
        ):
            monitor.until(lambda m: len(m.get("listening", ())) == SERVERS)
            before, began = cpu_seconds(monitor.process.pid), time.monotonic()
            while time.monotonic() - began < seconds:
                for run in runs:
                    run.say(LINE)
                monitor.next()
            spent = cpu_seconds(monitor.process.pid) - before
            return 100 * spent / (time.monotonic() - began), rss_mib(monitor.process.pid)


async def measure_console(seconds: float) -> tuple[float, float]:
    """CPU percent and MiB of this process while a fleet of eight servers is watched over one sshd."""
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as sshd:
        os.environ.update(sshd.environment)
        root = sshd.remote_home / ".local" / "state" / "dflash-console" / "runs"
        ports = [free_port() for _ in range(SERVERS)]
        config = sshd.host_config(python=sys.executable)
        servers = {
            f"server{number}": ServerConfig(name=f"server{number}", host=config.name, port=port)
            for number, port in enumerate(ports)
        }
        inventory = Inventory(hosts={config.name: config}, servers=servers)
        with eight_runs(root, ports):
            pool = SshPool(inventory.hosts)
            fleet = Fleet(inventory, pool)
            await fleet.start()
            try:
                async with asyncio.timeout(60):
                    async for snapshot in fleet.changes():
                        ready = [s for s in snapshot.servers if s.state is ServerState.READY and s.figures]
                        if len(ready) == SERVERS:
                            break
                await asyncio.sleep(3)
                before, began = time.process_time(), time.monotonic()
                end = began + seconds
                async for snapshot in fleet.changes():
                    assert all(server.state is ServerState.READY for server in snapshot.servers)
                    if time.monotonic() > end:
                        break
                percent = 100 * (time.process_time() - before) / (time.monotonic() - began)
                return percent, rss_mib(os.getpid())
            finally:
                await fleet.close()
                await pool.close()


async def measure_log(lines: int) -> tuple[float, float]:
    """Lines per second of one followed log, and by how many MiB this process grew meanwhile."""
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as sshd:
        os.environ.update(sshd.environment)
        root = sshd.remote_home / ".local" / "state" / "dflash-console" / "runs"
        config = sshd.host_config(python=sys.executable)
        run = Run(root, "server0")
        pool = SshPool({config.name: config})
        try:
            follow = HostRuns(pool.link(config.name)).follow_log(run.run_id)
            run.say("first\n")
            await anext(follow)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.monotonic()
            writing = asyncio.create_task(asyncio.to_thread(_write, run, lines))
            seen = 0
            async for batch in follow:
                seen += sum(1 for line in batch if "Decode batch" in line)
                if seen >= lines:
                    break
            rate = seen / (time.monotonic() - began)
            await writing
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
            with contextlib.suppress(AttributeError):
                await follow.aclose()  # type: ignore[attr-defined]
            return rate, grown
        finally:
            await pool.close()
            run.close()


def _write(run: Run, lines: int) -> None:
    for _ in range(0, lines, 1000):
        run.say(LINE * 1000)


def report(
    name: str, units: tuple[str, str], measure: Callable[[], tuple[float, float]], repeat: int
) -> None:
    """Prints the medians of some runs, and all of them."""
    results = [measure() for _ in range(repeat)]
    for place, unit in enumerate(units):
        values = [result[place] for result in results]
        each = "  ".join(f"{value:,.2f}" for value in values)
        print(f"{name:<10} {unit:<28} median {statistics.median(values):>12,.2f}   ({each})", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--only", choices=("monitor", "console", "log"))
    arguments = parser.parse_args()
    measures: dict[str, tuple[tuple[str, str], Callable[[], tuple[float, float]]]] = {
        "monitor": (("% of one core at 1 Hz", "MiB resident"), lambda: measure_monitor(arguments.seconds)),
        "console": (
            (f"% of one core, {SERVERS} servers", "MiB resident"),
            lambda: asyncio.run(measure_console(arguments.seconds)),
        ),
        "log": (
            ("lines per second followed", "MiB grown"),
            lambda: asyncio.run(measure_log(arguments.lines)),
        ),
    }
    for name, (units, measure) in measures.items():
        if arguments.only in (None, name):
            report(name, units, measure, arguments.repeat)


if __name__ == "__main__":
    main()
