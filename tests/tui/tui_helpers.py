"""Small helpers of the tests of the TUI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from textual.css.query import NoMatches
from textual.pilot import Pilot

from dflash_console.tui.app import DflashApp
from dflash_console.tui.widgets.grid import Grid


async def until(condition: Callable[[], Any], what: str = "", seconds: float = 60.0) -> None:
    """Waits for a condition; fails with its words when the deadline passes.

    A widget that is not there yet, on a screen that is still being made, is no failure. The deadline is for
    what never comes: a busy machine may take its time.
    """
    deadline = time.monotonic() + seconds
    while not _holds(condition):
        if time.monotonic() > deadline:
            raise AssertionError(f"not reached: {what or condition}")
        await asyncio.sleep(0.02)


def _holds(condition: Callable[[], Any]) -> bool:
    try:
        return bool(condition())
    except NoMatches:
        return False


async def settle(pilot: Pilot[Any]) -> None:
    """Lets messages be handled."""
    await pilot.pause()
    await pilot.pause()


async def steady(app: DflashApp, seconds: float = 60.0) -> None:
    """Waits until what is on the screen has not changed for a while."""
    deadline = time.monotonic() + seconds
    last, since = "", time.monotonic()
    while time.monotonic() - since < 0.4:
        if time.monotonic() > deadline:
            raise AssertionError("the screen does not come to rest")
        if (now := screen_text(app)) != last:
            last, since = now, time.monotonic()
        await asyncio.sleep(0.05)


def screen_text(app: DflashApp) -> str:
    """What is on the screen, as plain lines."""
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip()
        for strip in app.screen._compositor.render_strips()
    )


def toasts(app: DflashApp) -> list[str]:
    """Messages that were told and are still shown."""
    return [note.message for note in app._notifications]


def keys(app: DflashApp, grid: str) -> list[str]:
    """Keys of a grid's rows; none while the screen is not composed."""
    return [row.key for found in app.screen.query(grid).results(Grid) for row in found.rows]


def where(app: DflashApp) -> str:
    """Name of the screen in front."""
    return getattr(app.screen, "WHERE", type(app.screen).__name__)
