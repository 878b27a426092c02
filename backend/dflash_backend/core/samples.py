"""Frozen samples: what services emit and screens render.

Every figure that may be missing is ``float | None``; missing is never 0. ``at`` is seconds since the epoch
on the console's clock, so that an age is ``now - at``. Memory is MiB, power W, temperature degrees Celsius,
rates tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_backend.core.profile import Algorithm
from dflash_backend.core.states import LinkState, ServerState, StageName

GpuHealth = Literal["ok", "reset-required", "ecc-errors", "error", "unknown"]
GpuSource = Literal["nvml", "nvidia-smi", "none"]
RunManager = Literal["systemd", "setsid", "adopted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory on a GPU. In a container ``pid`` may be the host's and match nothing."""

    pid: int
    name: str = ""
    memory_mib: float | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    name: str
    uuid: str | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    utilization_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    ecc_uncorrected: int | None = None
    health: GpuHealth = "unknown"
    health_note: str = ""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One launch of a server as the host itself records it (the run folder is the truth).

    ``alive`` is true only when pid, start time and boot id all match. ``log_tail`` is the end of the log,
    already sanitised. ``argv`` and ``command`` hold no secret.
    """

    run_id: str
    server: str
    folder: str
    manager: RunManager
    profile: str = ""
    profile_digest: str = ""
    profile_toml: str = ""
    argv: tuple[str, ...] = ()
    port: int | None = None
    pid: int | None = None
    pgid: int | None = None
    alive: bool = False
    started_at: float | None = None
    exit_code: int | None = None
    exited_at: float | None = None
    started_by: str = ""
    stop_requested_at: float | None = None
    rss_mib: float | None = None
    log_path: str = ""
    log_size: int | None = None
    log_tail: str = ""
    note: str = ""
    """What is odd about this run: a damaged folder, a supervisor that is gone, processes that are left."""
    left: int = 0
    """Processes that outlived the run and still belong to it: a stop removes them."""
    gpus: tuple[int, ...] | None = None
    """GPUs that its processes hold memory on; None when that cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """What the host-side monitor said in one tick."""

    host: str
    at: float
    boot_id: str | None = None
    gpus: tuple[GpuSample, ...] = ()
    gpu_source: GpuSource = "none"
    gpu_note: str = ""
    """Why there are no GPU figures, or what is wrong with them; advice included."""
    memory_total_mib: float | None = None
    memory_available_mib: float | None = None
    load1: float | None = None
    cpus: int | None = None
    runs: tuple[RunStatus, ...] = ()
    listening: Mapping[int, int | None] = field(default_factory=dict)
    """Watched ports that something listens on -> its pid where it can be seen."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By section ("gpu", "runs", "listening", "host"): what could not be read, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a starting server is. ``done``/``total`` where the log counts (shards, graphs)."""

    name: StageName
    done: int | None = None
    total: int | None = None

    def text(self) -> str:
        """Short form for a table cell: ``graphs 14/24``."""
        return f"{self.name} {self.done}/{self.total}" if self.total else str(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """Live figures of one server from its HTTP surface.

    ``notes`` gives, by field name, why a figure is missing or not clean ("server runs without
    --enable-metrics", "idle: gauge is stale", "first value after a gap dropped").
    """

    server: str
    at: float
    decode_tok_s: float | None = None
    decode_source: Literal["counter", "log", "gauge-last", ""] = ""
    prefill_tok_s: float | None = None
    accept_length: float | None = None
    running: int | None = None
    queued: int | None = None
    token_usage: float | None = None
    kv_tokens: int | None = None
    cache_hit_rate: float | None = None
    retracted: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSettings:
    """What the running server says it runs with (read back from /server_info, secrets removed)."""

    version: str | None = None
    model: str | None = None
    drafter: str | None = None
    algorithm: Algorithm | None = None
    window: int | None = None
    window_known: bool = False
    budget: int | None = None
    topk: int | None = None
    block_size: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    """weights, kv_cache, graphs in MiB, as far as the server tells."""
    raw: Mapping[str, object] = field(default_factory=dict)
    """All server arguments as flat names, secrets removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """What the window audit said of a server, short enough for a row and a panel."""

    verdict: str
    """``enforced``, ``clamped``, ``ignored``, ``declared-but-dropped``, ``not-declared`` or ``unknown``."""
    gap: bool = False
    """True when what is declared is not what is served."""
    window: int | None = None
    """The widest window that a layer declares, in tokens; None when none does or it is not known."""
    text: str = ""
    """One line: what was found, or why nothing could be."""
    remedy: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """State of the SSH connection to a host."""

    host: str
    state: LinkState
    since: float
    last_seen: float | None = None
    message: str = ""
    retry_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSnapshot:
    """Everything a row of the fleet screen needs about one server."""

    name: str
    host: str
    port: int
    state: ServerState
    stage: Stage | None = None
    profile: str | None = None
    algorithm: Algorithm | None = None
    window: int | str | None = None
    budget: int | None = None
    topk: int | None = None
    audit: str | None = None
    """The audit's verdict in one word."""
    audit_summary: AuditSummary | None = None
    figures: ServerFigures | None = None
    settings: EffectiveSettings | None = None
    gpus: tuple[GpuSample, ...] = ()
    gpu_note: str = ""
    run: RunStatus | None = None
    rss_mib: float | None = None
    at: float | None = None
    """When the newest fact in this snapshot was read; None when nothing was ever read."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole fleet at one moment."""

    at: float
    servers: tuple[ServerSnapshot, ...] = ()
    hosts: tuple[LinkStatus, ...] = ()

    def server(self, name: str) -> ServerSnapshot | None:
        """The snapshot of one server, or None when the inventory has no such name."""
        return next((s for s in self.servers if s.name == name), None)
