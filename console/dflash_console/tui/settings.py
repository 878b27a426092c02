"""Effective settings of a server: asked (its profile) against granted (read back from it). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_backend.core.profile import Profile
from dflash_backend.core.samples import AuditSummary, EffectiveSettings, ServerSnapshot
from dflash_console.tui.figures import MISSING, audit_badge, window_text
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.widgets.grid import Column, Row

COLUMNS = (
    Column(key="name", title="setting", width=11, want=14, most=28),
    Column(key="asked", title="asked", width=7, most=26),
    Column(key="granted", title="granted", width=7, want=9, most=30),
)


def _word(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _short(path: str | None) -> str | None:
    """The end of a model's path says more than its beginning."""
    return path.rstrip("/").rsplit("/", 1)[-1] if path else None


def _same(asked: object, granted: object) -> bool:
    if isinstance(asked, int | float) and isinstance(granted, int | float):
        return float(asked) == float(granted)
    return str(asked) == str(granted)


def _row(name: str, asked: object, granted: object, *, differs: bool | None = None) -> Row:
    if differs is None:
        differs = asked is not None and granted is not None and not _same(asked, granted)
    shown: Pieces = ((_word(granted), "bad" if differs else "text" if granted is not None else "dim"),)
    if differs:
        shown = (("✖ ", "bad"), *shown)
    return Row(
        name,
        {
            "name": ((name, "dim"),),
            "asked": ((_word(asked), "text" if asked is not None else "dim"),),
            "granted": shown,
        },
    )


def _audited_row(asked: object, audit: AuditSummary | None) -> Row:
    """The drafter's window as the audit knows it: a flag alone proves nothing."""
    badge, role = audit_badge(audit.verdict if audit is not None else None)
    words = "not audited" if audit is None else str(audit.verdict)
    if audit is not None and audit.window is not None:
        words = f"{words} {audit.window}"
    granted: Pieces = ((f"{badge[0]} ", role), (words, role)) if badge != MISSING else ((words, "dim"),)
    cells = {
        "name": (("drafter window", "dim"),),
        "asked": ((_word(asked), "text" if asked is not None else "dim"),),
        "granted": granted,
    }
    return Row("drafter window", cells)


def _flag_row(asked: int | None, got: EffectiveSettings) -> Row:
    """The window flag as the server tells it; without one there is nothing wrong."""
    if got.window_known and got.window is None:
        return _row("window flag", asked, "no flag", differs=asked is not None)
    return _row("window flag", asked, window_text(got.window) if got.window is not None else None)


def settings_rows(server: ServerSnapshot, profile: Profile | None) -> list[Row]:
    """One row for each setting; a granted value that is not the asked one is marked."""
    got = server.settings or EffectiveSettings()
    options: Mapping[str, object] = profile.options if profile else {}
    asked_window = profile.window if profile and profile.drafter else None
    rows = [
        _row("algorithm", profile.algorithm if profile else None, got.algorithm or server.algorithm),
        _audited_row(asked_window, server.audit_summary),
        _flag_row(asked_window if isinstance(asked_window, int) else None, got),
        _row("budget", profile.budget if profile else None, got.budget),
        _row("topk", profile.topk if profile else None, got.topk),
        _row("block size", profile.block_size if profile else None, got.block_size),
        _row("target", _short(profile.target if profile else None), _short(got.model)),
        _row("drafter", _short(profile.drafter if profile else None), _short(got.drafter)),
        _row("SGLang", None, got.version),
        _row("max requests", options.get("max-running-requests"), got.max_running_requests),
        _row("KV tokens", options.get("max-total-tokens"), got.max_total_tokens),
        _row("context", options.get("context-length"), got.context_length),
    ]
    shown = {"max-running-requests", "max-total-tokens", "context-length"}
    for name, asked in options.items():
        if name not in shown:
            granted = got.raw.get(name.replace("-", "_"))
            rows.append(_row(name, asked, granted))
    return rows
