"""Watches a host and tells what it sees as JSON lines, once per second, until its input ends.

Request: ``{"root": folder of the runs or null, "ports": [...], "interval": seconds, "gpus": true}``.
The first line out is ``{"protocol": 1, …}``, every further one a tick (see ``Monitor.tick``). Lines in are
commands: ``{"ports": [...]}``, ``{"interval": s}``, ``{"ping": true}``, ``{"quit": true}``.

It leaves no file, opens no port and outlives nothing: it ends at end of input, at a broken pipe, and when a
console that sent pings has been silent for a minute (a connection that died without a word). An error in
one section of a tick becomes a note of that section; the rest of the tick is as good as ever.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from dflash_backend.hostside import _gpu, _host, _procs, _runs_seen

PROTOCOL = 1
SILENCE_S = 60
MAX_COMMAND = 64 * 1024
FIRST_GPU_S = 0.5
"""So long the first tick waits for the GPUs: a command that looks once should see them."""


class Monitor:
    """All sections of a tick, and what they remember from tick to tick."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.interval = 1.0
        self.ports: list[int] = []
        self.take(request)
        self.woken = threading.Event()
        self.port_owners = _host.Ports()
        self.runs = _runs_seen.RunsSeen(request.get("root"))
        self.gpus: _gpu.GpuReader | None = None
        if request.get("gpus", True):
            self.gpus = _gpu.GpuReader(self.interval)
            self.gpus.start()

    def take(self, command: dict[str, Any]) -> None:
        """Obeys a request or command; what makes no sense leaves things as they were."""
        ports = command.get("ports")
        if isinstance(ports, list):
            self.ports = [port for port in ports if type(port) is int and 0 < port < 65536][:256]
        interval = command.get("interval")
        if isinstance(interval, (int, float)) and not isinstance(interval, bool):
            self.interval = min(60.0, max(0.1, float(interval)))

    def hello(self) -> dict[str, Any]:
        """The first line: who speaks, and in which protocol."""
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "boot_id": _procs.boot_id() or None,
            "root": self.runs.root,
        }

    def tick(self) -> dict[str, Any]:
        """Everything of this moment; ``notes`` says by section what could not be read."""
        tick: dict[str, Any] = {"at": round(time.time(), 3), "notes": {}}

        def section(name: str, read: Callable[[], Any], fallback: Any) -> None:
            try:
                tick[name] = read()
            except Exception as error:
                tick[name] = fallback
                tick["notes"][name] = f"{type(error).__name__}: {error}"[:300]

        section("host", _host.host_figures, {})
        section("gpu", self.read_gpus, {"source": "none", "note": "", "rows": []})
        section("runs", lambda: self.read_runs(tick["gpu"]["rows"]), [])
        section("listening", self.read_ports, {})
        return tick

    def read_gpus(self) -> dict[str, Any]:
        if self.gpus is None:
            return {"source": "none", "note": "not asked for", "rows": []}
        return self.gpus.sample()

    def read_runs(self, gpu_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = self.runs.read()
        by_gpu = _host.pids_by_gpu(gpu_rows)
        for row in rows:
            if row["alive"] and row["pgid"]:
                row["gpus"] = _host.gpus_of(self.runs.table.members(row["pgid"]), by_gpu)
        return rows

    def read_ports(self) -> dict[int, int | None]:
        return self.port_owners.listening(self.ports, self.runs.table.processes)

    def leave(self) -> None:
        """Ends the process at once; called from the thread that reads commands."""
        if self.gpus is not None:
            self.gpus.close()
        os._exit(0)

    def obey(self, stdin: BinaryIO) -> None:
        """Reads commands until the input ends, then ends the process: also while a write is stuck."""
        while True:
            line = stdin.readline(MAX_COMMAND)
            if not line:
                self.leave()
            try:
                command = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                continue
            if not isinstance(command, dict):
                continue
            if command.get("quit"):
                self.leave()
            if command.get("ping"):
                # The kernel ends this process when the next ping does not come, whatever it is stuck in.
                signal.alarm(SILENCE_S)
            self.take(command)
            if command.get("ports") is not None:
                self.woken.set()


def main(request: Any, emit: Callable[[Any], None], stdin: BinaryIO) -> None:
    """Runs until the channel ends."""
    monitor = Monitor(request if isinstance(request, dict) else {})
    threading.Thread(target=monitor.obey, args=(stdin,), daemon=True).start()
    try:
        emit(monitor.hello())
        if monitor.gpus is not None:
            monitor.gpus.known.wait(FIRST_GPU_S)
        due = time.monotonic()
        while True:
            emit(monitor.tick())
            # From now on when a tick took too long: ticks never stack.
            due = max(due + monitor.interval, time.monotonic())
            monitor.woken.wait(due - time.monotonic())
            monitor.woken.clear()
    finally:
        if monitor.gpus is not None:
            monitor.gpus.close()
