"""The real command line, run as a user runs it, against a host behind a real sshd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigs.sshd import Sshd

MAIN = [sys.executable, "-m", "dflash_console"]


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def events(self) -> list[Any]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Console:
    """``dflash-console`` with its own HOME and configuration file."""

    def __init__(self, sshd: Sshd, config: str, profiles: Mapping[str, str]) -> None:
        home = Path(sshd.environment["HOME"])
        folder = home / ".config" / "dflash-console"
        (folder / "profiles").mkdir(parents=True, mode=0o700, exist_ok=True)
        (folder / "config.toml").write_text(config)
        (folder / "config.toml").chmod(0o600)
        for name, text in profiles.items():
            (folder / "profiles" / f"{name}.toml").write_text(text)
            (folder / "profiles" / f"{name}.toml").chmod(0o600)
        self.folder = folder
        self.environment = {**os.environ, **sshd.environment, "NO_COLOR": "1"}

    def run(self, *words: str, timeout: float = 240.0) -> Done:
        """Runs a command to its end."""
        done = subprocess.run(
            [*MAIN, *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command and leaves it running."""
        return subprocess.Popen(
            [*MAIN, *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def server(self, name: str) -> dict[str, Any]:
        """One server of ``status --json``."""
        document = self.run("status", name, "--json").document
        (server,) = document["servers"]
        assert isinstance(server, dict)
        return server

    def wait_for(
        self, name: str, wanted: Callable[[dict[str, Any]], bool], *, what: str, timeout: float = 240.0
    ) -> dict[str, Any]:
        """Asks for the status until it is as wanted."""
        deadline = time.monotonic() + timeout
        while True:
            now = self.server(name)
            if wanted(now):
                return now
            assert time.monotonic() < deadline, f"{what} did not come: {now}"
            time.sleep(0.2)
