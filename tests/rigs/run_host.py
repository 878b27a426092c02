"""A host with runs, seen from the inside: what was launched, which processes live, where the folders are."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dflash_backend.hostside import _members, _procs
from dflash_backend.runs.contract import LaunchSpec
from rigs.sshd import Sshd, free_port, poll_until

SERVER = Path(__file__).with_name("tree_server.py")


@dataclass
class Host:
    """The remote side of a test, seen from the inside."""

    sshd: Sshd
    folder: Path
    pid_files: list[Path] = field(default_factory=list)
    since: int = field(default_factory=lambda: int(_procs.uptime() * _procs.TICKS) - 1)

    @property
    def root(self) -> Path:
        """Where the runs are on the host."""
        return self.sshd.remote_home / ".local" / "state" / "dflash-console" / "runs"

    def spec(
        self, *features: str, server: str = "one", port: int | None = None, **changes: object
    ) -> LaunchSpec:
        """A launch of the tree server."""
        port = port or free_port()
        pids = self.folder / f"pids-{len(self.pid_files)}.json"
        self.pid_files.append(pids)
        values: dict[str, object] = {
            "server": server,
            "profile": "tree",
            "profile_digest": "d1",
            "profile_toml": 'name = "tree"\n',
            "argv": [sys.executable, str(SERVER), str(port), str(pids), *features],
            "port": port,
            "started_by": "tester@here",
            **changes,
        }
        return LaunchSpec(**values)  # type: ignore[arg-type]

    def family(self, spec: LaunchSpec) -> dict[str, int]:
        """The pids of what a launched server started, once it listens."""
        pids = Path(spec.argv[3])
        poll_until(pids.exists, what="the server listening")
        found: dict[str, int] = json.loads(pids.read_text())
        return found

    def clean_up(self) -> None:
        """Kills whatever was launched and is still there, and nothing else."""
        left = {}
        marked = (run for run in self.root.glob("2*Z-*") if (run / "supervisor").is_file())
        for run in marked:
            left.update({one.pid: one.start for one in _members.Tracker(run.name, None, None).living()})
        for file in self.pid_files:
            for pid in json.loads(file.read_text()).values() if file.exists() else ():
                one = _procs.process(pid)
                if one is not None and one.start >= self.since and one.name.startswith("python"):
                    left[pid] = one.start
        for pid, start in left.items():
            _procs.signal_exactly(pid, start, signal.SIGKILL)


def gone(pid: int) -> bool:
    """True when no living process has this pid."""
    one = _procs.process(pid)
    return one is None or not one.living


async def until(condition: Callable[[], object], *, deadline: float = 15.0) -> None:
    """``poll_until`` for tests whose own event loop has to go on. Raises TimeoutError."""
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 (files and processes set no event)
            await asyncio.sleep(0.02)
