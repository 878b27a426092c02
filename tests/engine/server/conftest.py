"""A real engine server in a process of its own, on the shipped reference pair."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest


@dataclass
class ServerProcess:
    """One engine server. ``log`` is its standard error."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(folder: Path, *options: str, wait: bool = True) -> Iterator[ServerProcess]:
    """Starts a server and, unless told otherwise, waits until it is ready."""
    port = free_port()
    log_path = folder / f"engine-{port}.log"
    command = [sys.executable, "-m", "dflash_engine", "serve", "--port", str(port), *options]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        )
    server = ServerProcess(process, port, log_path)
    try:
        deadline = time.monotonic() + 60
        while wait and "ready to roll" not in server.log():
            assert process.poll() is None, server.log()
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)


TREE = (
    "--model-path", "builtin:target", "--speculative-algorithm", "DDTREE",
    "--speculative-draft-model-path", "builtin:drafter", "--speculative-ddtree-budget", "16",
    "--enable-metrics", "--decode-log-interval", "4", "--context-length", "2048",
)  # fmt: skip


@pytest.fixture(scope="module")
def tree_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One DDTREE server for a whole test module."""
    with serve(tmp_path_factory.mktemp("engine"), *TREE) as server:
        yield server


@pytest.fixture
async def http() -> aiohttp.ClientSession:
    """A client session that ends with the test."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session
