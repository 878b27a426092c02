"""Effective settings of a server: asked (its profile) against granted (read back from it). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_backend.core.profile import Profile
from dflash_backend.core.samples import EffectiveSettings, ServerSnapshot
from dflash_console.tui.figures import MISSING, window_text
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.widgets.grid import Column, Row

COLUMNS = (
    Column(key="name", title="setting", width=11, most=28),
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


def settings_rows(server: ServerSnapshot, profile: Profile | None) -> list[Row]:
    """One row for each setting; a granted value that is not the asked one is marked."""
    got = server.settings or EffectiveSettings()
    options: Mapping[str, object] = profile.options if profile else {}
    granted_window = window_text(got.window) if got.window_known and got.window is not None else None
    if got.window_known and got.window is None:
        granted_window = "off"
    asked_window = profile.window if profile and profile.drafter else None
    rows = [
        _row("algorithm", profile.algorithm if profile else None, got.algorithm or server.algorithm),
        _row(
            "window",
            asked_window,
            granted_window,
            differs=isinstance(asked_window, int)
            and granted_window is not None
            and str(asked_window) != granted_window,
        ),
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
