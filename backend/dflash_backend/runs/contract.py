"""What may be asked about runs: launches of servers that outlive the console."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dflash_backend.core.samples import RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that a launch needs. ``secret_env`` goes over stdin and into the child's environment."""

    server: str
    profile: str
    profile_digest: str
    profile_toml: str
    argv: Sequence[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    started_by: str = ""
    cwd: str | None = None
    """Folder on the host to start in; None: the home folder."""
    log_cap_mib: int = 64
    """The log is kept at most so large, and once more as ``log.1``."""
    systemd: bool = True
    """False: not as a systemd user service, even where that is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What was proven after a stop. ``complete`` is the conjunction; ``notes`` say what could not be seen."""

    run_id: str
    exit_code: int | None
    group_gone: bool
    gpu_free: bool | None
    """None: no GPU, or its processes cannot be seen from here."""
    port_free: bool
    killed: bool
    """True when TERM was not enough."""
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.group_gone and self.port_free and self.gpu_free is not False


class RunService(Protocol):
    """Runs on one host. Every answer comes from the host; nothing is remembered here."""

    async def launch(self, spec: LaunchSpec) -> RunStatus:
        """Starts a run and returns once its identity is on the host's disk.

        Raises FailedError (no interpreter, disk full, port taken, …) with nothing left running.
        """
        ...

    async def list_runs(self) -> tuple[RunStatus, ...]:
        """All run folders, newest first; a damaged folder becomes a row that says so."""
        ...

    async def stop(self, run_id: str, *, grace_s: float = 60.0) -> StopReport:
        """TERM to the group, wait, KILL, then proof. A recycled pid is never signalled.

        Raises RefusedError when the run's identity cannot be established or is not ours.
        """
        ...

    async def adopt(self, *, server: str, port: int, profile: str = "", started_by: str = "") -> RunStatus:
        """Makes the process that listens on ``port`` a run; it is from then on ours to stop."""
        ...

    def follow_log(
        self, run_id: str, *, last_bytes: int = 65536, follow: bool = True, since_s: float | None = None
    ) -> AsyncGenerator[list[str], None]:
        """Clean lines in batches; survives truncation and rotation of the file.

        ``since_s``: from the first line stamped within the last so many seconds, instead of ``last_bytes``.
        Ends when the run is over and its log has been read.
        """
        ...

    async def forget(self, run_id: str) -> None:
        """Deletes the folder of a run that is over. Raises RefusedError while it lives."""
        ...
