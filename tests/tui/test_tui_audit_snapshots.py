"""What the audit screen looks like at three sizes, as pictures (see test_tui_snapshots)."""

from __future__ import annotations

from typing import Any

import pytest
import textual
from audit_fakes import ENFORCED, IGNORED, UNKNOWN, FakeAudits, entry
from textual.pilot import Pilot
from tui_fakes import NOW, FakeFleet, fake_services, snapshot
from tui_helpers import screen_text, settle, until, where

from dflash_console.tui.app import DflashApp
from dflash_console.tui.screens.audit import AuditScreen

pytestmark = pytest.mark.skipif(
    textual.__version__ != "8.2.8", reason="pictures are drawn with Textual 8.2.8"
)

ENTRIES = {
    "kimi-a": ("enforced", entry(ENFORCED, NOW - 12, profile="kimi-ddtree8")),
    "kimi-b": ("ignored", entry(IGNORED, NOW - 12)),
    "qwen-8b": ("unknown", entry(UNKNOWN, NOW - 12, profile="qwen-ddtree32")),
    "measured": ("ignored", entry(IGNORED, NOW - 12, measured=True)),
}


def app_with(name: str, **changes: object) -> DflashApp:
    server = "kimi-b" if name == "measured" else name
    source = FakeAudits({server: ENTRIES[name][1]})
    return DflashApp(fake_services(fleet=FakeFleet(snapshot()), audit=source, **changes))


def at_audit(name: str) -> Any:
    async def go(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, DflashApp)
        app.push_screen(AuditScreen("kimi-b" if name == "measured" else name))
        word = ENTRIES[name][0].upper()
        await until(lambda: where(app) == "audit" and word in screen_text(app) and app.focused, word)
        await settle(pilot)

    return go


@pytest.mark.parametrize("size", [(80, 24), (120, 30), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ENTRIES)
def test_audit_screen(snap_compare: Any, name: str, size: tuple[int, int]) -> None:
    assert snap_compare(app_with(name), terminal_size=size, run_before=at_audit(name))


@pytest.mark.parametrize("look", [{"ascii": True}, {"theme": "light"}], ids=["ascii", "light"])
def test_audit_look(snap_compare: Any, look: dict[str, object]) -> None:
    assert snap_compare(app_with("kimi-b", **look), terminal_size=(100, 30), run_before=at_audit("kimi-b"))
