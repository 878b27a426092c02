"""A program in a real pseudo-terminal: what it writes to the terminal, byte by byte."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType


class PtyProgram:
    """Runs ``argv`` on a terminal of ``columns`` x ``rows``; ends it on leaving."""

    def __init__(
        self, argv: Sequence[str], *, columns: int = 80, rows: int = 24, env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:  # fmt: skip
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._master = master
        self.output = bytearray()
        self.process = subprocess.Popen(
            list(argv),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)

    def send(self, data: bytes) -> None:
        """Presses keys."""
        os.write(self._master, data)

    def read_until(self, condition: Callable[[bytes], bool], what: str, seconds: float = 30.0) -> None:
        """Reads until the output so far fulfils a condition; fails with its words after a deadline."""
        deadline = time.monotonic() + seconds
        while not condition(bytes(self.output)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(
                    f"not seen: {what}; the end of the output: {bytes(self.output[-600:])!r}"
                )
            if select.select([self._master], [], [], min(left, 0.2))[0]:
                try:
                    data = os.read(self._master, 65536)
                except OSError:
                    data = b""  # Linux reports the end of the other side as an error.
                if not data:
                    if condition(bytes(self.output)):
                        return
                    raise AssertionError(f"ended before: {what}; the end: {bytes(self.output[-600:])!r}")
                self.output += data

    def wait(self, seconds: float = 20.0) -> int:
        """Reads to the end and returns the exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self._master, 65536)
                except OSError:
                    break
        return self.process.wait(timeout=max(0.1, deadline - time.monotonic()))
