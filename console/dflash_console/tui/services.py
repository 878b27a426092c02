"""Everything the screens may use, as one frozen bundle: the only seam between screens and backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from dflash_backend.audit.badges import Entry
from dflash_backend.audit.measurement import Measurement, Progress
from dflash_backend.control.contract import Operator
from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.profile import Profile
from dflash_backend.telemetry.contract import FleetView


class LogSource(Protocol):
    """Logs of servers by name, wherever the run's folder is."""

    def follow(self, server: str) -> AsyncIterator[list[str]]:
        """Clean lines in batches, the end of the log first, then as they come.

        Ends when the run is over and its log is read. Raises UnreachableError when the connection is lost
        and UsageError when the server never had a run.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """One line of the profile list. ``problem`` says why the file cannot be used; empty when it can."""

    name: str
    description: str = ""
    origin: str = ""
    shipped: bool = False
    problem: str = ""


class ProfileCatalog(Protocol):
    """Profiles that can be applied."""

    def names(self) -> tuple[ProfileSummary, ...]:
        """All profiles in the order in which they are offered; cheap, no I/O that blocks."""
        ...

    def get(self, name: str) -> Profile:
        """The resolved profile. Raises ConfigError or UsageError."""
        ...


CellState = Literal["waiting", "running", "done", "unclean", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCell:
    """One cell of a benchmark as far as it is known. Times are milliseconds, rates tokens per second."""

    key: str
    arm: str
    point: str
    """What varies inside an arm, in words: ``ctx 2k · conc 4``."""
    state: CellState = "waiting"
    progress: float | None = None
    done: int | None = None
    total: int | None = None
    tok_s: float | None = None
    accept_length: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    flags: tuple[str, ...] = ()
    """Why a figure is not clean."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchState:
    """A benchmark run at one moment. ``ok`` is None while it runs."""

    run_id: str
    job: str
    server: str
    cells: tuple[BenchCell, ...] = ()
    started_at: float | None = None
    finished_at: float | None = None
    eta_s: float | None = None
    ok: bool | None = None
    message: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """A benchmark job that can be run."""

    name: str
    description: str = ""
    cells: int | None = None
    origin: str = ""
    problem: str = ""


class BenchSource(Protocol):
    """Benchmark jobs and their runs."""

    async def jobs(self) -> tuple[BenchJob, ...]: ...

    async def runs(self) -> tuple[BenchState, ...]:
        """Finished and interrupted runs, newest first."""
        ...

    def run(self, job: str, server: str) -> AsyncIterator[BenchState]:
        """Runs a job; every item is the whole state. Cancelling stops after the requests in flight."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOffer:
    """The key that a host shows now, beside the one known before (None: never seen)."""

    host: str
    address: str
    key_type: str
    fingerprint: str
    known_fingerprint: str | None = None
    compare_with: str = ""
    """A command that prints the same fingerprint on the host itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor."""

    name: str
    level: Literal["ok", "info", "warning", "failed"]
    text: str
    next_step: str = ""


class HostCare(Protocol):
    """What can be done about a host: its key, its connection, its health."""

    async def offered_key(self, host: str) -> KeyOffer:
        """The key the host shows now. Raises UnreachableError."""
        ...

    async def trust(self, host: str, fingerprint: str) -> None:
        """Trusts exactly this key. Raises RefusedError when the host shows another one by now."""
        ...

    async def forget(self, host: str) -> None:
        """Forgets the trusted key of a host."""
        ...

    async def retry(self, host: str) -> None:
        """Ends the wait for the next connection attempt."""
        ...

    def check(self, host: str) -> AsyncIterator[Finding]:
        """The doctor's findings as they come. Raises UnreachableError, RefusedError."""
        ...


class AuditSource(Protocol):
    """The window audits: what is kept, reading one again, measuring."""

    def entry(self, server: str) -> Entry | None:
        """What is kept of a server's present run; no I/O."""
        ...

    async def audit(self, server: str, *, fresh: bool) -> Entry:
        """What is kept, or a new audit. Raises UnreachableError, RefusedError, ConfigError, FailedError."""
        ...

    def measure(self, server: str, *, force: bool) -> AsyncIterator[Progress | Measurement]:
        """Measures the server; the result is kept with the audit. Raises RefusedError, UsageError, …"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What ``DflashApp`` is built from. Optional parts are shown as disabled, with the reason."""

    fleet: FleetView
    operator: Operator
    logs: LogSource
    profiles: ProfileCatalog
    bench: BenchSource | None = None
    hosts: HostCare | None = None
    audit: AuditSource | None = None
    clock: Clock = wall
    read_only: bool = False
    ascii: bool = False
    theme: str | None = None
    keymap: Mapping[str, str] = field(default_factory=dict)
    """Action id -> key or keys separated by commas, as the configuration file has them."""
    pinned: tuple[str, ...] = ()
    """Profiles on the keys 1-9."""
    config_path: str = ""
    save_dir: Path | None = None
    """Where logs are saved to; None: ``logs`` in the data folder."""
    log_dir: Path | None = None
    """Where the console writes its own log; None: the state folder."""
    label: str = ""
    """Shown in the header when the source is not the live fleet: ``demo``, ``replay``."""
