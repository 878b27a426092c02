#!/usr/bin/env python3
"""Figures of the screens: CPU with eight servers at 1 Hz, a log of 10,000 lines a second, bytes written.

Whole processes in a real pseudo-terminal (120x30), on made-up services, so that only the screens are
measured. Prints one JSON document; nothing is asserted.

    python benchmarks/screens.py [--seconds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "tui")]

from rigs.pty_console import PtyProgram  # noqa: E402

CASES = ("idle", "fleet", "server", "log")
SERVERS = 8
LINES_PER_S = 10_000
WARM_UP_S = 3.0


def measure_inside(case: str, seconds: float, report: Path) -> None:
    """The console itself, which reports its own CPU after ``seconds``."""
    from tui_fakes import FakeFleet, FakeLogs, fake_services, hosts, servers

    from dflash_backend.core.samples import Snapshot
    from dflash_console.tui.app import DflashApp
    from dflash_console.tui.widgets.logview import LogView

    class Fleet(FakeFleet):
        async def changes(self) -> AsyncIterator[Snapshot]:
            for tick in range(10**9):
                await asyncio.sleep(1.0 / SERVERS)
                if case == "idle":
                    continue
                now, rows = time.time(), list(self.now.servers)
                row = rows[tick % SERVERS]
                assert row.figures is not None
                figures = replace(row.figures, at=now, decode_tok_s=140.0 + tick % 20)
                rows[tick % SERVERS] = replace(row, at=now, figures=figures)
                self.now = replace(self.now, at=now, servers=tuple(rows))
                yield self.now

    class Logs(FakeLogs):
        async def follow(self, server: str) -> AsyncIterator[list[str]]:
            batch = [f"[TP0] Decode batch, #token: {i}, accept len: 4.2, #queue-req: 0" for i in range(1000)]
            while True:
                yield batch
                await asyncio.sleep(1000 / LINES_PER_S)

    rows = tuple(replace(servers()[0], name=f"s{i}", host=f"gpu{i}") for i in range(SERVERS))
    fleet = Fleet(Snapshot(at=time.time(), servers=rows, hosts=hosts()))
    changes: dict[str, object] = {"fleet": fleet, "clock": time.time}
    if case == "log":
        changes["logs"] = Logs()
    app = DflashApp(fake_services(**changes))

    async def meter() -> None:
        await asyncio.sleep(WARM_UP_S)
        if case in ("server", "log"):
            app.open_server("s0")
            await asyncio.sleep(WARM_UP_S)
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        spent = time.perf_counter() - began
        result: dict[str, object] = {
            "cpu_percent": round(100 * (time.process_time() - cpu) / spent, 1),
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        if case == "log":
            store = app.screen.query_one(LogView).store
            result["lines_seen"], result["lines_kept"] = store.total, len(store)
        results.append(result)
        app.exit(0)

    results: list[dict[str, object]] = []
    tasks: list[asyncio.Task[None]] = []
    app.call_later(lambda: tasks.append(asyncio.create_task(meter())))
    app.run()
    report.write_text(json.dumps(results[0]))


def main() -> int:
    """Runs every case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        measure_inside(args.inside[0], args.seconds, Path(args.inside[1]))
        return 0
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            report = Path(folder) / f"{case}.json"
            argv = [sys.executable, __file__, "--seconds", str(args.seconds), "--inside", case, str(report)]
            began = time.perf_counter()
            with PtyProgram(argv, columns=120, rows=30) as console:
                try:
                    console.wait(args.seconds + 4 * WARM_UP_S + 20)
                except subprocess.TimeoutExpired:
                    print(f"{case}: did not end", file=sys.stderr)
                    return 1
                rate = len(console.output) / (time.perf_counter() - began) / 1000
            results[case] = {**json.loads(report.read_text()), "terminal_kb_per_s": round(rate, 1)}
    print(json.dumps({"schema": 1, "seconds": args.seconds, "servers": SERVERS, "cases": results}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
