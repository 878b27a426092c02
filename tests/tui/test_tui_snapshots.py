"""What the screens look like at three sizes, as pictures. Made with exactly the Textual of the test extra.

After a wanted change: ``pytest tests/tui/test_tui_snapshots.py --snapshot-update``, then look at the report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import textual
from textual.pilot import Pilot
from tui_fakes import LOG, FakeFleet, FakeOperator, fake_services, more_servers, snapshot
from tui_helpers import keys, screen_text, steady, until, where

from dflash_console.tui.app import DflashApp

pytestmark = pytest.mark.skipif(textual.__version__ != "8.2.8", reason="drawn with Textual 8.2.8")

SIZES = [(80, 24), (120, 30), (200, 50)]
Before = Callable[[Pilot[Any]], Awaitable[None]]


def app_of(pilot: Pilot[Any]) -> DflashApp:
    assert isinstance(pilot.app, DflashApp)
    return pilot.app


async def fleet(pilot: Pilot[Any]) -> None:
    await until(lambda: "kimi-a" in screen_text(app_of(pilot)), "fleet")
    await steady(app_of(pilot))


async def server(pilot: Pilot[Any]) -> None:
    app = app_of(pilot)
    app.open_server("kimi-a")
    await until(lambda: where(app) == "server" and app.focused, "server")
    await until(lambda: "#queue-req" in screen_text(app) or "#running-req" in screen_text(app), "log")
    await until(lambda: f" {len(LOG)} lines" in screen_text(app), "title")
    await until(lambda: "81%" in screen_text(app), "memory")
    await steady(app_of(pilot))


async def picker(pilot: Pilot[Any]) -> None:
    app = app_of(pilot)
    app.open_picker("kimi-a", "kimi-ddtree16")
    await until(lambda: getattr(app.screen, "plan", None), "plan")
    await until(lambda: "needs a restart" in screen_text(app), "painted")
    await steady(app_of(pilot))


async def confirm(pilot: Pilot[Any]) -> None:
    await picker(pilot)
    await pilot.press("enter")
    await until(lambda: "requests" in screen_text(app_of(pilot)), "question")
    await steady(app_of(pilot))


async def progress(pilot: Pilot[Any]) -> None:
    await confirm(pilot)
    await pilot.press("right", "enter")
    await until(lambda: "✖ fa3" in screen_text(app_of(pilot)), "outcome")
    await steady(app_of(pilot))


async def help_(pilot: Pilot[Any]) -> None:
    await fleet(pilot)
    await pilot.press("question_mark")
    await until(lambda: "esc closes" in screen_text(app_of(pilot)), "help")
    await steady(app_of(pilot))


async def hosts(pilot: Pilot[Any]) -> None:
    app = app_of(pilot)
    app.open_hosts("gpu9")
    await until(lambda: where(app) == "hosts" and app.focused, "hosts")
    await pilot.press("d")
    await until(lambda: "6 checks, 1 failed" in screen_text(app), "doctor")
    await steady(app_of(pilot))


async def bench(pilot: Pilot[Any]) -> None:
    app = app_of(pilot)
    app.open_bench("kimi-a")
    await until(lambda: where(app) == "bench" and keys(app, "#jobs"), "jobs")
    await pilot.press("r")
    await until(lambda: "3/5 cells" in screen_text(app), "cells")
    await steady(app_of(pilot))


STATES: dict[str, Before] = {
    "fleet": fleet,
    "server": server,
    "picker": picker,
    "confirm": confirm,
    "progress": progress,
    "help": help_,
    "hosts": hosts,
    "bench": bench,
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", STATES)
def test_screen(snap_compare: Any, name: str, size: tuple[int, int]) -> None:
    fleet_view = FakeFleet(snapshot(*more_servers()) if name == "fleet" else snapshot())
    assert snap_compare(
        DflashApp(fake_services(fleet=fleet_view)), terminal_size=size, run_before=STATES[name]
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [("ascii", {"ascii": True}), ("light", {"theme": "light"}), ("read_only", {"read_only": True})],
)
def test_look(snap_compare: Any, name: str, changes: dict[str, object]) -> None:
    if name == "read_only":
        changes = {**changes, "operator": FakeOperator(read_only=True)}
    assert snap_compare(DflashApp(fake_services(**changes)), terminal_size=(100, 30), run_before=server)


def test_too_small(snap_compare: Any) -> None:
    assert snap_compare(DflashApp(fake_services()), terminal_size=(50, 12))
