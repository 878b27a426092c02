#!/usr/bin/env python3
"""Figures of the console itself: import of the command line, ``status --json``, first paint of the screens.

Everything is measured as a user meets it: whole processes, against a real sshd on loopback and a real
server behind it. Prints one JSON document; nothing is asserted.

    python benchmarks/console.py [--repeats N]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rigs.sshd import Sshd, free_port, missing  # noqa: E402

CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"
[servers.one]
host = "rig"
port = {port}
profile = "ref-chain"
"""
MAIN = [sys.executable, "-m", "dflash_console"]


def spread(values: list[float]) -> dict[str, float]:
    """Median, fastest and slowest, seconds."""
    return {
        "median_s": round(statistics.median(values), 3),
        "min_s": round(min(values), 3),
        "max_s": round(max(values), 3),
    }


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Wall-clock seconds of a whole process, which must succeed."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def import_s(environment: dict[str, str]) -> float:
    """Seconds that importing the command line takes inside a fresh interpreter."""
    code = (
        "import time; t = time.perf_counter(); import dflash_console.cli.main; print(time.perf_counter() - t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def first_paint_s(environment: dict[str, str]) -> float:
    """Seconds from starting the process to the fleet's table being on a 120x30 terminal."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(  # noqa: S606 (the process under test)
            sys.executable, MAIN, {**environment, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    seen = b""
    try:
        while time.perf_counter() - began < 30:
            if select.select([terminal], [], [], 0.05)[0]:
                seen += os.read(terminal, 65536)
                if re.search(rb"one[^\n]*rig", re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen)):
                    return time.perf_counter() - began
        raise TimeoutError("nothing was painted within 30 s")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def main() -> int:
    """Runs everything and prints the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, Sshd(Path(folder) / "sshd") as sshd:
        environment = {**os.environ, **sshd.environment}
        config = Path(sshd.environment["HOME"]) / ".config/dflash-console/config.toml"
        config.parent.mkdir(parents=True, mode=0o700)
        config.write_text(CONFIG.format(python=sys.executable, port=free_port()))
        config.chmod(0o600)
        subprocess.run([*MAIN, "start", "one"], env=environment, check=True, capture_output=True)
        try:
            status = [*MAIN, "status", "--json"]
            timed(status, environment)
            figures = {
                "import_command_line": spread([import_s(environment) for _ in range(repeats)]),
                "status_json_one_host": spread([timed(status, environment) for _ in range(repeats)]),
                "first_paint": spread([first_paint_s(environment) for _ in range(repeats)]),
            }
        finally:
            subprocess.run([*MAIN, "stop", "one", "--yes"], env=environment, check=True, capture_output=True)
    print(json.dumps({"schema": 1, "repeats": repeats, "cpus": os.cpu_count(), "figures": figures}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
