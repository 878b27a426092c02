"""What needs a human, found in a snapshot: problems in words, each with its next step. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import LinkState, ServerState
from dflash_console.tui.figures import duration, has_gap, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One problem. ``target`` is the server or host that ``enter`` opens."""

    kind: Literal["server", "host"]
    target: str
    glyph: str
    role: str
    text: str
    next_step: str = ""


def notices(snapshot: Snapshot, now: float) -> list[Notice]:
    """All problems, the gravest first."""
    hosts = [notice for host in snapshot.hosts if (notice := _host(host, now))]
    servers = [notice for server in snapshot.servers for notice in _server(server)]
    order = {"bad": 0, "warn": 1, "second": 2}
    return sorted([*servers, *hosts], key=lambda n: order.get(n.role, 3))


def _host(host: LinkStatus, now: float) -> Notice | None:
    if host.state is LinkState.KEY_UNKNOWN:
        return Notice(
            kind="host",
            target=host.host,
            glyph="◇",
            role="warn",
            text="host key is not known",
            next_step="enter: compare the fingerprint, then trust it",
        )
    if host.state is LinkState.KEY_CHANGED:
        return Notice(
            kind="host",
            target=host.host,
            glyph="✖",
            role="bad",
            text="host key CHANGED: connection refused",
            next_step="enter: both fingerprints",
        )
    if host.state in (LinkState.AUTH_FAILED, LinkState.CONFIG_ERROR):
        what = "login refused" if host.state is LinkState.AUTH_FAILED else "ssh configuration"
        text = f"{what}: {host.message}" if host.message else what
        return Notice(
            kind="host", target=host.host, glyph="✖", role="bad", text=text, next_step="enter: hosts, then r"
        )
    if host.state is LinkState.LOST:
        since = host.last_seen if host.last_seen is not None else host.since
        seen = time.strftime("%H:%M", time.localtime(since))
        text = f"SSH: no answer since {seen}"
        if host.retry_at is not None:
            text += f", retry in {duration(max(0.0, host.retry_at - now))}"
        return Notice(
            kind="host", target=host.host, glyph="?", role="warn", text=text, next_step=host.message
        )
    return None


def _server(server: ServerSnapshot) -> list[Notice]:
    result = []
    if server.state is ServerState.FAILED:
        code = server.run.exit_code if server.run else None
        text = server.message or "failed"
        if code is not None and str(code) not in text:
            text = f"exit {code}: {text}"
        result.append(_notice(server, "✖", "bad", text, "enter: the lines that say why"))
    if server.state is ServerState.READY and has_gap(server):
        result.append(_gap(server))
    elif server.state is ServerState.READY and server.message:
        result.append(_notice(server, "⚑", "warn", server.message, ""))
    for gpu in server.gpus:
        if gpu.health not in ("ok", "unknown"):
            text = f"GPU {gpu.index} {gpu.health.replace('-', ' ')}"
            result.append(_notice(server, "✖", "bad", text, gpu.health_note))
    return result


def _gap(server: ServerSnapshot) -> Notice:
    """A window that is not enforced: what it costs now, and what to do."""
    figures, audit = server.figures, server.audit_summary
    accept = number(figures.accept_length if figures else None, 2)
    if audit is not None and audit.window is not None:
        text = f"window {audit.window} {audit.verdict}: accept {accept}"
    else:
        text = f"window declared, not enforced: accept {accept}"
    step = server.message or "a: audit"
    if audit is not None:
        step = f"a: audit   {audit.remedy}" if audit.remedy else "a: audit"
    return _notice(server, "✖", "bad", text, step)


def _notice(server: ServerSnapshot, glyph: str, role: str, text: str, next_step: str) -> Notice:
    return Notice(kind="server", target=server.name, glyph=glyph, role=role, text=text, next_step=next_step)
