"""One registry: every action has a handler, a key, words, and is told the same way everywhere."""

from __future__ import annotations

import pytest
from textual.command import CommandPalette
from textual.widgets import Input
from tui_fakes import FakeOperator, fake_services, hosts, servers
from tui_helpers import screen_text, settle, toasts, until, where

from dflash_backend.control.contract import Action
from dflash_console.tui.actions import ACTIONS, BY_ID, SCREENS, actions_in
from dflash_console.tui.app import DflashApp
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import check_keymap, key_text, keys_of
from dflash_console.tui.screens.audit import AuditScreen
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.screens.bench import BenchScreen
from dflash_console.tui.screens.fleet import FleetScreen
from dflash_console.tui.screens.help import HelpScreen, help_lines
from dflash_console.tui.screens.hosts import HostsScreen
from dflash_console.tui.screens.log import LogScreen
from dflash_console.tui.screens.picker import PickerScreen
from dflash_console.tui.screens.progress import ProgressScreen
from dflash_console.tui.screens.server import ServerScreen
from dflash_console.tui.widgets.bars import KeyBar

CLASSES: tuple[type[ConsoleScreen], ...] = (
    FleetScreen,
    ServerScreen,
    PickerScreen,
    ProgressScreen,
    BenchScreen,
    HostsScreen,
    LogScreen,
    AuditScreen,
)


def test_every_screen_is_known_and_binds_what_the_registry_says() -> None:
    assert {cls.WHERE for cls in CLASSES} == set(SCREENS)
    for cls in CLASSES:
        bound = {binding.id for binding in cls.BINDINGS}  # type: ignore[union-attr]
        assert bound == {spec.id for spec in actions_in(cls.WHERE)}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.WHERE)
def test_every_action_has_a_handler(cls: type[ConsoleScreen]) -> None:
    for spec in actions_in(cls.WHERE):
        if spec.id.startswith("pin-"):
            continue
        name = f"do_{spec.id.replace('-', '_')}"
        assert hasattr(cls, name) or hasattr(DflashApp, name), spec.id


def test_no_screen_uses_a_key_twice_and_every_action_has_words() -> None:
    assert len(BY_ID) == len(ACTIONS)
    for screen in SCREENS:
        taken = [key for spec in actions_in(screen) for key in spec.key.split(",")]
        assert len(taken) == len(set(taken)), screen
    for spec in ACTIONS:
        assert spec.title
        assert spec.description.endswith(".")
        assert spec.where <= set(SCREENS)


def test_help_names_every_action_of_the_screen_and_why_one_is_disabled() -> None:
    operator = FakeOperator()
    operator.refuse[Action.RESTART] = "the host is unreachable [/x]"
    context = Context(
        services=fake_services(operator=operator), screen="fleet", server=servers()[0], host=hosts()[0]
    )
    text = "\n".join("".join(part for part, _ in line) for line in help_lines(context, 100))
    for spec in actions_in("fleet"):
        if not spec.id.startswith("pin-"):
            assert spec.title_in(context) in text
            assert key_text(spec.key) in text
    assert "disabled because the host is unreachable [/x]" in text
    assert "profile kimi-ddtree16" in text


async def test_question_mark_opens_help_on_every_screen_and_escape_closes_it() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for screen in (
            None,
            ServerScreen("kimi-a"),
            PickerScreen("kimi-a"),
            BenchScreen("kimi-a"),
            HostsScreen(),
            LogScreen("kimi-a"),
            ProgressScreen("kimi-a"),
        ):
            if screen is not None:
                app.push_screen(screen)
                await until(lambda: screen.is_mounted and app.focused, "screen")  # noqa: B023
            await pilot.press("question_mark")
            await until(lambda: isinstance(app.screen, HelpScreen), "help")
            await pilot.press("escape")
            await until(lambda: not isinstance(app.screen, HelpScreen), "closed")
            if screen is not None:
                await pilot.press("escape")
                await until(lambda: where(app) == "fleet", f"back from {screen}")


async def test_escape_always_leads_out() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        for name in ("kimi-a", "kimi-b"):
            app.open_server(name)
            await until(lambda name=name: getattr(app.screen, "server_name", "") == name, name)  # type: ignore[misc]
            app.open_logs(name)
            await until(lambda: where(app) == "log", "log")
        for _ in range(12):
            await pilot.press("escape")
        await until(lambda: where(app) == "fleet" and len(app.screen_stack) == 1, "fleet")


async def test_the_users_keys_replace_ours_everywhere() -> None:
    app = DflashApp(fake_services(keymap={"profile": "P,f5", "help": "f1"}))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        hints = {hint.action: hint.key for hint in app.screen.query_one("#keys", KeyBar).hints}
        assert (hints["profile"], hints["help"]) == ("P", "f1")
        await pilot.press("p")
        await settle(pilot)
        assert where(app) == "fleet"
        await pilot.press("f5")
        await until(lambda: where(app) == "picker", "picker")
        await pilot.press("f1")
        await until(lambda: isinstance(app.screen, HelpScreen), "help")


async def test_a_wrong_keymap_is_told_and_does_not_break() -> None:
    keymap = {"profil": "x", "logs": "p"}
    assert list(check_keymap(keymap)) == [
        "keymap: no action is called 'profil'; did you mean 'profile'?",
        "keymap: 'p' is both 'profile' and 'logs' on screen 'fleet'",
        "keymap: 'p' is both 'profile' and 'logs' on screen 'server'",
    ]
    app = DflashApp(fake_services(keymap=keymap))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await until(lambda: any("did you mean 'profile'?" in text for text in toasts(app)), "told")
    assert keys_of(BY_ID["logs"], keymap) == "p"


async def test_the_palette_finds_actions_and_servers_and_says_what_is_disabled() -> None:
    operator = FakeOperator(read_only=True)
    app = DflashApp(fake_services(operator=operator, read_only=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(app.screen, CommandPalette), "palette")
        await until(lambda: "servers: open" in screen_text(app), "listed")
        await until(lambda: "disabled because the console was started" in screen_text(app), "with the reason")
        app.screen.query_one(Input).value = "kimi-b"
        await until(lambda: "server: kimi-b" in screen_text(app), "found")
        await pilot.press("enter")
        await until(lambda: where(app) == "server", "opened")
        assert getattr(app.screen, "server_name", "") == "kimi-b"


async def test_the_key_bar_can_be_clicked_and_always_shows_help_and_quit() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(60, 20)) as pilot:
        await settle(pilot)
        bar = app.screen.query_one("#keys", KeyBar)
        fitting = bar.fitting(bar.size.width)
        assert [hint.action for _, hint in fitting][-2:] == ["help", "quit"]
        at = next(x for x, hint in fitting if hint.action == "help")
        await pilot.click("#keys", offset=(at + 3, 0))
        await until(lambda: isinstance(app.screen, HelpScreen), "help")


async def test_a_click_opens_a_row() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.click("#servers", offset=(6, 2), times=2)
        await until(lambda: where(app) == "server", "opened")
        assert getattr(app.screen, "server_name", "") == "kimi-b"
