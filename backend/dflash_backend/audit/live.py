"""The window audit of one server: what runs there, or what would be launched, read over SSH."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dflash_backend.audit import engine
from dflash_backend.audit.audit import audit
from dflash_backend.audit.collect import Collected, Wanted, collect
from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.measurement import Measurement
from dflash_backend.audit.report import AuditFinding, AuditReport, Verdict
from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.profile import Algorithm
from dflash_backend.core.samples import EffectiveSettings, RunStatus, ServerSnapshot
from dflash_backend.core.states import ServerState
from dflash_backend.sglang.decode import mapping_or_empty
from dflash_backend.ssh.link import HostLink

Basis = Literal["running", "run", "profile"]
"""What is audited: the process that runs, the newest run (it failed), or what the profile would launch."""

Collector = Callable[[HostLink, Wanted], Awaitable[Collected]]

_RUNNING = frozenset(
    {ServerState.READY, ServerState.FOREIGN, ServerState.STARTING, ServerState.DRAINING, ServerState.STOPPING}
)
_DRAFTER_OPTIONS = ("--speculative-draft-model-path", "--speculative-draft-model")
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a profile would launch on the host. ``env`` holds no secrets."""

    profile: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAudit:
    """A report and what it is about."""

    report: AuditReport
    basis: Basis
    run_id: str | None = None
    profile: str | None = None
    drafter: str | None = None
    python: str = ""
    measurement: Measurement | None = None


def basis_of(now: ServerSnapshot | None, launch: Launch | None) -> Basis:
    """What there is to audit in a server's present state."""
    if now is not None and now.state in _RUNNING:
        return "running"
    if now is not None and now.run is not None and (now.state is ServerState.FAILED or launch is None):
        return "run"
    return "profile" if launch is not None else "running"


async def audit_server(
    server: ServerConfig,
    link: HostLink,
    now: ServerSnapshot | None,
    *,
    launch: Launch | None = None,
    collector: Collector = collect,
    clock: Clock = wall,
) -> LiveAudit:
    """Audits one server. ``now`` is its newest snapshot; ``launch`` what its profile would start.

    Reads the settings that a running server tells, else its arguments and its log; the drafter's config and
    the sources of the interpreter that runs it. Raises what the connection raises (UnreachableError, …).
    """
    basis = basis_of(now, launch)
    run = now.run if now is not None and basis != "profile" else None
    settings = now.settings if now is not None and basis == "running" else None
    argv: Sequence[str] = launch.argv if basis == "profile" and launch else run.argv if run else ()
    found = await collector(link, _wanted(server, link, basis, run, settings, argv, launch))
    argv = argv or found.argv
    at = clock()
    if _no_drafter(settings, argv):
        report = AuditReport(
            verdict=Verdict.NOT_DECLARED,
            subject=server.name,
            sglang_version=None if engine.is_engine(argv) else running_version(settings, found),
            findings=(
                AuditFinding(
                    severity="info",
                    code="no-drafter",
                    text="this server runs without a drafter: there is no window to enforce",
                ),
            ),
            at=at,
        )
    elif settings is not None and mapping_or_empty(settings.raw.get("dflash_engine")):
        report = engine.from_server(
            server.name, settings.raw, found.drafter, found.drafter_where, found.drafter_missing, at
        )
    elif engine.is_engine(argv):
        report = engine.from_arguments(
            server.name, argv, found.drafter, found.drafter_where, found.drafter_missing, at
        )
    else:
        # Evaluating the sources takes some tenths of a second: not on the event loop.
        report = await asyncio.to_thread(audit, inputs_of(server, found, settings, argv, at))
    return LiveAudit(
        report=_with_remarks(report, found, basis, launch),
        basis=basis,
        run_id=run.run_id if run else None,
        profile=launch.profile if basis == "profile" and launch else now.profile if now else None,
        drafter=settings.drafter if settings else _option(argv, _DRAFTER_OPTIONS),
        python=found.python,
    )


def _wanted(
    server: ServerConfig,
    link: HostLink,
    basis: Basis,
    run: RunStatus | None,
    settings: EffectiveSettings | None,
    argv: Sequence[str],
    launch: Launch | None,
) -> Wanted:
    alive = basis == "running"
    env = {**link.config.env, **(launch.env if launch and basis == "profile" else {})}
    return Wanted(
        pid=run.pid if run is not None and run.alive and alive else None,
        port=server.port if alive else None,
        argv=argv,
        python=link.config.python,
        env=env,
        drafter=settings.drafter if settings else None,
        target=settings.model if settings else None,
        log=run.log_path or None if run is not None else None,
        sources=not engine.is_engine(argv),
    )


def inputs_of(
    server: ServerConfig,
    found: Collected,
    settings: EffectiveSettings | None,
    argv: Sequence[str],
    at: float,
) -> AuditInputs:
    """What the audit proper is given; sources that are not those of the running server are left out."""
    source, missing = found.source, found.source_missing
    running = settings.version if settings else None
    if source is not None and running and found.sglang_version and running != found.sglang_version:
        missing = (
            f"the running server says SGLang {running}, but {source.where} holds {found.sglang_version}: "
            "these are not the files that it runs"
        )
        source = None
    elif source is not None and found.guessed and running != found.sglang_version:
        missing = "the server's process cannot be seen, so which interpreter runs it is not known"
        source = None
    elif source is not None and _changed_since(found):
        missing = (
            f"files of {source.where} were changed after the server started: it runs what was there before"
        )
        source = None
    version = running or found.sglang_version
    info = _server_info(settings)
    return AuditInputs(
        subject=server.name,
        host=server.host,
        draft_config=found.drafter,
        draft_config_where=found.drafter_where,
        draft_config_missing=found.drafter_missing if found.drafter is None else "",
        sglang_version=version,
        version_where="/server_info" if running else source.where if source is not None else "the host",
        server_info=info,
        argv=list(argv) or None,
        log=found.log,
        log_where=found.log_where or "log",
        source=source,
        source_missing=missing,
        target_config=found.target,
        compute_capability=found.compute_capability,
        at=at,
    )


def running_version(settings: EffectiveSettings | None, found: Collected) -> str | None:
    """The version that runs, else the one that is installed."""
    return settings.version if settings is not None and settings.version else found.sglang_version


def _server_info(settings: EffectiveSettings | None) -> dict[str, object] | None:
    """The settings in the form of /server_info: what the plugin tells stands under ``internal_states``."""
    if settings is None:
        return None
    info = dict(settings.raw)
    plugin = info.get("dflash_sglang")
    if plugin is not None:
        info["internal_states"] = [{"dflash_sglang": plugin}]
    return info


def _changed_since(found: Collected) -> bool:
    return (
        found.started_at is not None
        and found.source_changed_at is not None
        and found.source_changed_at > found.started_at + _CLOCK_SLACK_S
    )


def _no_drafter(settings: EffectiveSettings | None, argv: Sequence[str]) -> bool:
    if settings is not None:
        return settings.algorithm is Algorithm.NONE
    return bool(argv) and _option(argv, _DRAFTER_OPTIONS) is None and _option(argv, ("--config",)) is None


def _option(argv: Sequence[str], names: Sequence[str]) -> str | None:
    found = None
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else argv[place + 1] if place + 1 < len(argv) else None
    return found


def _with_remarks(report: AuditReport, found: Collected, basis: Basis, launch: Launch | None) -> AuditReport:
    """Adds what only the live side knows."""
    remarks = []
    if basis == "profile" and launch is not None:
        text = f"the server does not run: this is what profile {launch.profile} would launch"
        remarks.append(AuditFinding(severity="info", code="not-running", text=text))
    elif basis == "run":
        text = "the server does not run: this is about its newest run"
        remarks.append(AuditFinding(severity="info", code="not-running", text=text))
    if len(found.installations) > 1:
        seen = ", ".join(f"{one.version or 'unknown version'} in {one.where}" for one in found.installations)
        text = f"several copies of SGLang: {seen}; the first is the one that is imported"
        remarks.append(AuditFinding(severity="warning", code="several-installations", text=text))
    if found.guessed and found.source is not None and basis == "running":
        text = f"the server's process cannot be seen: read were the sources of {found.python}, same version"
        remarks.append(AuditFinding(severity="info", code="assumed-interpreter", text=text))
    if found.drafter_note:
        remarks.append(AuditFinding(severity="info", code="drafter-snapshot", text=found.drafter_note))
    missing = tuple(dict.fromkeys((*report.missing, *found.unread[:5], *found.problems[:5])))
    return replace(report, findings=(*report.findings, *remarks), missing=missing)


def gap_warning(report: AuditReport) -> list[str]:
    """What a plan says when what it would launch does not do what the drafter's config declares."""
    if not report.verdict.is_gap:
        return []
    worst = next((f for f in report.findings if f.severity == "gap"), None)
    remedy = next((r for r in report.remedies if r.kind != "none"), None)
    parts = [f"drafter window: {report.verdict}", *((worst.text,) if worst is not None else ())]
    if remedy is not None:
        parts.append(f"remedy: {remedy.text}{f' ({remedy.command})' if remedy.command else ''}")
    return ["; ".join(parts)]
