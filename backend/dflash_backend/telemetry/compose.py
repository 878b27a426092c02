"""One server's snapshot from what is known of it. Pure: no I/O, no memory."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.core.samples import (
    AuditSummary,
    EffectiveSettings,
    GpuSample,
    HostSample,
    RunStatus,
    ServerFigures,
    ServerSnapshot,
)
from dflash_backend.core.states import ServerState
from dflash_backend.telemetry.derive import Derived

FIGURES_S = 10.0
"""Older figures are not shown as those of now."""
LIVING = frozenset(
    {ServerState.STARTING, ServerState.READY, ServerState.DRAINING, ServerState.STOPPING, ServerState.FOREIGN}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a server speculates, as far as it is known. ``window`` is tokens, ``config`` or ``off``."""

    algorithm: Algorithm | None = None
    window: int | str | None = None
    budget: int | None = None
    topk: int | None = None


def tuning_of_text(profile_toml: str) -> Tuning:
    """From the profile that a run was launched with; everything unknown when it cannot be read."""
    try:
        values = tomllib.loads(profile_toml)
    except (tomllib.TOMLDecodeError, RecursionError):
        return Tuning()
    name = values.get("algorithm")
    window = values.get("window", "config" if values else None)
    return Tuning(
        algorithm=Algorithm(name) if name in tuple(Algorithm) else Algorithm.NONE if values else None,
        window=window if isinstance(window, int | str) and not isinstance(window, bool) else None,
        budget=_whole(values, "budget"),
        topk=_whole(values, "topk"),
    )


def _whole(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def tuning_of_profile(profile: Profile | None) -> Tuning:
    """From a profile."""
    if profile is None:
        return Tuning()
    return Tuning(
        algorithm=profile.algorithm, window=profile.window, budget=profile.budget, topk=profile.topk
    )


def tuning(settings: EffectiveSettings | None, asked: Tuning) -> Tuning:
    """What the running server says, and what was asked for where it says nothing."""
    if settings is None:
        found = asked
    else:
        found = Tuning(
            algorithm=settings.algorithm or asked.algorithm,
            window=asked.window if settings.window is None else settings.window,
            budget=asked.budget if settings.budget is None else settings.budget,
            topk=asked.topk if settings.topk is None else settings.topk,
        )
    if found.algorithm is Algorithm.NONE:
        return Tuning(algorithm=found.algorithm)
    if found.algorithm is Algorithm.DFLASH:
        return Tuning(algorithm=found.algorithm, window=found.window)
    return found


def gpus_of_server(
    sample: HostSample, run: RunStatus | None, listener: int | None
) -> tuple[tuple[GpuSample, ...], str]:
    """The GPUs that a server uses, or all of its host with a note when that cannot be seen."""
    if not sample.gpus:
        return (), sample.gpu_note
    if run is not None and run.alive and run.gpus is not None:
        return tuple(gpu for gpu in sample.gpus if gpu.index in run.gpus), sample.gpu_note
    if run is None and listener is not None:
        held = tuple(gpu for gpu in sample.gpus if any(one.pid == listener for one in gpu.processes))
        if held:
            return held, sample.gpu_note
    note = "all GPUs of the host: which of them this server uses cannot be seen"
    return sample.gpus, f"{sample.gpu_note}; {note}" if sample.gpu_note else note


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything that was read about one server."""

    server: ServerConfig
    derived: Derived
    now: float
    sample: HostSample | None = None
    run: RunStatus | None = None
    figures: ServerFigures | None = None
    settings: EffectiveSettings | None = None
    profile: Profile | None = None
    """The profile that the configuration names for this server."""
    audit: AuditSummary | None = None
    last_seen: float | None = None


def compose(known: Known) -> ServerSnapshot:
    """The snapshot. Figures of a server that cannot be seen now are left out: they would pass for fresh."""
    state, run, sample = known.derived.state, known.run, known.sample
    living = state in LIVING
    figures = known.figures
    if figures is not None and (not living or known.now - figures.at > FIGURES_S):
        figures = None
    settings = known.settings if living else None
    if state is ServerState.FOREIGN:
        profile_name: str | None = None
        asked = Tuning()
        run = None
    elif run is not None:
        profile_name = run.profile or None
        asked = tuning_of_text(run.profile_toml)
    else:
        profile_name = known.server.profile
        asked = tuning_of_profile(known.profile)
    tuned = tuning(settings, asked)
    gpus: tuple[GpuSample, ...] = ()
    gpu_note = ""
    seen = sample is not None and state not in (ServerState.UNREACHABLE, ServerState.UNKNOWN)
    if sample is not None and seen:
        gpus, gpu_note = gpus_of_server(sample, run, sample.listening.get(known.server.port))
    times = [sample.at if sample is not None else None, figures.at if figures is not None else None]
    times.append(known.last_seen if not seen else None)
    return ServerSnapshot(
        name=known.server.name,
        host=known.server.host,
        port=known.server.port,
        state=state,
        stage=known.derived.stage,
        profile=profile_name,
        algorithm=tuned.algorithm,
        window=tuned.window,
        budget=tuned.budget,
        topk=tuned.topk,
        audit=known.audit.verdict if known.audit is not None else None,
        audit_summary=known.audit,
        figures=figures,
        settings=settings,
        gpus=gpus,
        gpu_note=gpu_note,
        run=run,
        rss_mib=run.rss_mib if run is not None and run.alive and seen else None,
        at=max((time for time in times if time is not None), default=None),
        message=known.derived.message,
    )
