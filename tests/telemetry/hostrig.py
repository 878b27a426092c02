"""Real processes, run folders and a monitor as a subprocess, for the telemetry tests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dflash_backend.hostside import _procs, _runfolder
from dflash_backend.ssh.programs import JsonLines, Preamble, program_argv, program_input


class Run:
    """A run folder as a launch leaves it, around a real process in a group of its own."""

    def __init__(
        self,
        root: Path,
        server: str,
        *,
        number: int = 1,
        port: int | None = None,
        code: str = "import sys; sys.stdin.read()",
        profile_toml: str = "",
        stamp: str = "20260101T000000Z",
    ) -> None:
        self.run_id = f"{stamp}-{number:08x}"
        self.folder = root / self.run_id
        self.folder.mkdir(parents=True, mode=0o700)
        self.log = self.folder / "log"
        self.log.touch()
        record = {
            "server": server,
            "profile": "fast",
            "profile_digest": "d1",
            "profile_toml": profile_toml,
            "argv": ["python", "-m", "sglang.launch_server"],
            "manager": "setsid",
            "started_at": time.time(),
            "started_by": "tester",
            "machine": os.uname().nodename,
        }
        if port is not None:
            record["port"] = port
        (self.folder / "run.json").write_text(json.dumps(record))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        one = _procs.process(self.process.pid)
        assert one is not None
        _runfolder.write_identity(str(self.folder), one)

    def say(self, text: str | bytes) -> None:
        """Appends to the log."""
        with self.log.open("ab") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)

    def record_exit(self, code: int) -> None:
        """What the supervisor writes at the end."""
        (self.folder / "exit").write_text(f"{code} {time.time()} {_procs.uptime()}\n")

    def ask_stop(self) -> None:
        """What a stop request leaves in the folder."""
        (self.folder / "stop").write_text(json.dumps({"at": time.time(), "by": "tester", "grace_s": 5}))

    def kill(self) -> None:
        """kill -9, as somebody on the host would; the supervisor's record follows."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.record_exit(137)

    def close(self) -> None:
        """Ends the process if it still lives."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class MonitorProcess:
    """The monitor as the console starts it on a host, without SSH in between."""

    def __init__(
        self,
        request: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        python: str | None = sys.executable,
    ) -> None:
        data, nonce = program_input("monitor", {"interval": 0.1, **request})
        self.process = subprocess.Popen(
            program_argv("monitor", python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.preamble, self.lines = Preamble(nonce), JsonLines()
        self.waiting: list[Any] = []
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, command: Mapping[str, Any]) -> None:
        """Sends one command line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def next(self, deadline: float = 20.0) -> Any:
        """The next message."""
        end = time.monotonic() + deadline
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        while not self.waiting:
            left = end - time.monotonic()
            ready, _, _ = select.select([handle], [], [], max(0.0, left))
            if not ready:
                raise AssertionError("the monitor says nothing")
            chunk = os.read(handle, 65536)
            if not chunk:
                assert self.process.stderr is not None
                raise AssertionError(f"the monitor ended: {self.process.stderr.read().decode()}")
            self.waiting += self.lines.feed(self.preamble.feed(chunk))
        return self.waiting.pop(0)

    def until(self, condition: Callable[[Any], object], deadline: float = 20.0) -> Any:
        """The first message for which ``condition`` is true."""
        end = time.monotonic() + deadline
        message = None
        while time.monotonic() < end:
            message = self.next(end - time.monotonic())
            if condition(message):
                return message
        raise AssertionError(f"not seen; last: {message}")

    def close(self) -> int:
        """End of input, as when the channel closes; the exit status."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            assert self.process.stderr is not None
            self.process.stderr.close()

    def __enter__(self) -> MonitorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
