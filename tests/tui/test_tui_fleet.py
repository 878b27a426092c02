"""The fleet screen: what it shows, keys, filter, order, problems, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual import events
from textual.widgets import Input
from tui_fakes import NOW, Clock, FakeFleet, FakeOperator, fake_services, more_servers, snapshot
from tui_helpers import keys, screen_text, settle, toasts, until, where

from dflash_backend.control.contract import Action
from dflash_backend.core.samples import ServerFigures
from dflash_backend.core.states import ServerState
from dflash_console.tui.app import DflashApp
from dflash_console.tui.widgets.bars import KeyBar, Line
from dflash_console.tui.widgets.grid import Grid
from dflash_console.tui.widgets.logview import LogView


async def test_every_server_is_there_with_its_figures_and_problems_come_first() -> None:
    app = DflashApp(fake_services(fleet=FakeFleet(snapshot(*more_servers()))))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        assert keys(app, "#servers") == [
            "broken",
            "scratch",
            "kimi-b",
            "qwen-8b",
            "kimi-a",
            "cpu-demo",
            "other",
            "spare",
        ]
        text = screen_text(app)
        for words in (
            "148.2",
            "4.31",
            "2/0",
            "81%",
            "2048 ✓",
            "2048 ✖gap",
            "8/8",
            "graphs 14/24",
            "last seen 4 min",
            "failed · exit 1",
            "rss 0.6G",
        ):
            assert words in text
        assert "8 servers · 3 ready · 1 failed · 1 unreachable · 1 gap" in text
        await pilot.press("o")
        await settle(pilot)
        assert keys(app, "#servers")[:2] == ["kimi-a", "kimi-b"]


async def test_a_missing_figure_is_a_dash_and_never_zero() -> None:
    first = snapshot()
    idle = replace(first.servers[0], figures=ServerFigures(server="kimi-a", at=NOW), gpus=(), audit=None)
    app = DflashApp(fake_services(fleet=FakeFleet(replace(first, servers=(idle,)))))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        row = app.screen.query_one("#servers", Grid).rows[0]
        shown = {key: "".join(text for text, _ in pieces) for key, pieces in row.cells.items()}
        assert [shown[key] for key in ("tok_s", "accept", "requests", "memory")] == ["–"] * 4


async def test_an_unreachable_server_shows_no_old_figures() -> None:
    first = snapshot()
    lost = replace(first.servers[0], state=ServerState.UNREACHABLE, at=NOW - 60)
    app = DflashApp(fake_services(fleet=FakeFleet(replace(first, servers=(lost,)))))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "last seen 60 s" in text
        assert "148.2" not in text


async def test_a_change_of_state_is_painted_without_a_key() -> None:
    fleet = FakeFleet()
    app = DflashApp(fake_services(fleet=fleet))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        dead = replace(snapshot().servers[0], state=ServerState.FAILED, message="killed by signal 9")
        fleet.push(replace(snapshot(), servers=(dead,)))
        await until(lambda: "killed by signal 9" in screen_text(app), "the failure is on the screen", 3)


async def test_ages_grow_without_news_and_are_hidden_while_fresh() -> None:
    clock = Clock()
    app = DflashApp(fake_services(clock=clock))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        grid = app.screen.query_one("#servers", Grid)

        def age() -> str:
            return next("".join(t for t, _ in r.cells["age"]) for r in grid.rows if r.key == "kimi-a")

        assert age() == ""
        clock.now += 30
        await until(lambda: age() == "31s", "the age is shown", 4)


async def test_filter_narrows_while_typing_and_escape_clears_it() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"gap")
        await until(lambda: keys(app, "#servers") == ["kimi-b"], "only the gap")
        await pilot.press("enter")
        assert "filter “gap”" in screen_text(app)
        await pilot.press("escape")
        await until(lambda: len(keys(app, "#servers")) == 4, "all again")
        await pilot.press("slash", *"zzz")
        await settle(pilot)
        assert "no server matches the filter" in screen_text(app)
        await pilot.press("escape")
        await until(lambda: len(keys(app, "#servers")) == 4, "all again")


async def test_the_cursor_stays_on_its_server_when_the_order_changes() -> None:
    fleet = FakeFleet()
    app = DflashApp(fake_services(fleet=fleet))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        grid = app.screen.query_one("#servers", Grid)
        grid.select("kimi-a")
        failed = tuple(
            replace(s, state=ServerState.FAILED) if s.name == "qwen-8b" else s for s in snapshot().servers
        )
        fleet.push(replace(snapshot(), servers=failed))
        await until(lambda: grid.rows[0].key == "qwen-8b", "the failed one is first")
        assert grid.key == "kimi-a"


async def test_enter_opens_the_server_and_escape_comes_back() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", Grid).select("kimi-b")
        await pilot.press("enter")
        await until(lambda: where(app) == "server", "server screen")
        assert "kimi-b" in app.screen.query_one("#top", Line).plain
        await pilot.press("escape")
        await until(lambda: where(app) == "fleet", "fleet screen")


async def test_a_problem_of_a_host_leads_to_the_host() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("tab")
        attention = app.screen.query_one("#attention", Grid)
        assert attention.has_focus
        attention.select(next(row.key for row in attention.rows if "gpu12" in row.key))
        await pilot.press("enter")
        await until(lambda: where(app) == "hosts", "hosts screen")
        assert app.screen.query_one("#hosts", Grid).key == "gpu12"


async def test_a_refused_action_is_shown_dimmed_and_says_why() -> None:
    operator = FakeOperator()
    operator.refuse[Action.STOP] = "kimi-a was not started by this console: it can be adopted"
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", Grid).select("kimi-a")
        await settle(pilot)
        hint = next(h for h in app.screen.query_one("#keys", KeyBar).hints if h.action == "start-stop")
        assert (hint.title, hint.enabled) == ("stop", False)
        await pilot.press("s")
        await until(lambda: toasts(app), "a message")
        assert toasts(app) == [
            "stop is disabled because kimi-a was not started by this console: it can be adopted"
        ]
        assert not operator.planned


async def test_read_only_is_in_the_header_and_nothing_that_changes_is_enabled() -> None:
    app = DflashApp(fake_services(read_only=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "read-only" in app.screen.query_one("#top", Line).plain
        for key in ("s", "R"):
            await pilot.press(key)
        await until(lambda: len(toasts(app)) == 2, "two refusals")
        assert all("the console was started with --read-only" in text for text in toasts(app))


@pytest.mark.parametrize(
    ("typed", "there"),
    [
        ("kimi-a", "server"),
        ("hosts", "hosts"),
        ("bench", "bench"),
        ("log kimi-b", "log"),
        ("profile kimi-a", "picker"),
    ],
)
async def test_the_command_line_leads_there(typed: str, there: str) -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press(
            "colon", *("space" if c == " " else "minus" if c == "-" else c for c in typed), "enter"
        )
        await until(lambda: where(app) == there, f"screen {there}")


async def test_a_command_typed_at_once_is_not_taken_for_keys_and_a_key_acts_once() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        for char in ":kimi-a\r":
            key = {":": "colon", "-": "minus", "\r": "enter"}.get(char, char)
            app.post_message(events.Key(key, char))
        await until(lambda: getattr(app.screen, "server_name", "") == "kimi-a", "opened")
        await until(lambda: app.screen.query(LogView) and app.screen.query_one(LogView).has_focus, "log")
        await pilot.press("w")
        await settle(pilot)
        assert app.screen.query_one(LogView).wrap
        assert toasts(app) == []


async def test_the_command_line_names_the_nearest_that_it_knows() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("colon", *"kimia", "enter")
        await until(lambda: toasts(app), "a message")
        assert "did you mean kimi-a?" in toasts(app)[0]


async def test_tab_completes_a_command_and_stays_in_the_line() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("colon", *"hos")
        line = app.screen.query_one("Prompt Input", Input)
        await until(lambda: line._suggestion == "hosts", "a suggestion")
        await pilot.press("tab")
        assert line.value == "hosts"
        assert line.has_focus
        await pilot.press("enter")
        await until(lambda: where(app) == "hosts", "hosts")


async def test_pinned_profiles_open_the_preview() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", Grid).select("kimi-a")
        await pilot.press("2")
        await until(lambda: where(app) == "picker", "picker")
        await until(
            lambda: app.screen.query_one("#profiles", Grid).key == "kimi-ddtree16", "pinned one selected"
        )
        await pilot.press("escape")
        await until(lambda: where(app) == "fleet", "the fleet again")
        await settle(pilot)
        await pilot.press("7")
        await until(lambda: toasts(app), "a message")
        assert "no profile is pinned to 7" in toasts(app)[0]


async def test_copy_says_how_it_was_copied() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", Grid).select("kimi-a")
        await pilot.press("y")
        await until(lambda: toasts(app), "a message")
        assert "OSC 52" in toasts(app)[0]
        assert app.clipboard.startswith("kimi-a  gpu1  ready  kimi-ddtree8")


async def test_ctrl_c_ends_nothing_and_says_what_does() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+c")
        await until(lambda: toasts(app) == ["q leaves; y copies what is selected"], "told")
        assert app.is_running


async def test_columns_do_not_move_when_figures_change() -> None:
    fleet = FakeFleet()
    app = DflashApp(fake_services(fleet=fleet))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        grid = app.screen.query_one("#servers", Grid)
        before = [(p.column.key, p.x, p.width) for p in grid.placed]
        header = grid.render_line(0).text
        first = snapshot()
        for value in (0.0, 9.9, 14_820.4, 1e9, float("nan")):
            changed = replace(
                first.servers[0],
                profile="a-very-long-profile-name-that-does-not-fit-anywhere",
                figures=ServerFigures(
                    server="kimi-a",
                    at=NOW,
                    decode_tok_s=value,
                    accept_length=value,
                    running=9999,
                    queued=12345,
                ),
            )
            fleet.push(replace(first, servers=(changed, *first.servers[1:])))
            await until(lambda: any("a-very-long" in str(r.cells["profile"]) for r in grid.rows), "pushed")
            assert [(p.column.key, p.x, p.width) for p in grid.placed] == before
            assert grid.render_line(0).text == header
            for y in range(1, 5):
                assert grid.render_line(y).cell_length == grid.size.width
        # Figures of the fourth row start where they started.
        ready = next(i for i, r in enumerate(grid.rows) if r.key == "kimi-b")
        text = grid.render_line(ready + 1).text
        place = next(p for p in grid.placed if p.column.key == "tok_s")
        assert text[place.x : place.x + place.width] == "  96.0"


@pytest.mark.parametrize("size", [(59, 24), (80, 14), (20, 5), (1, 1)])
async def test_too_small_a_window_says_so_and_nothing_breaks(size: tuple[int, int]) -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        assert app.screen.query_one("#too-small").display
        assert not app.screen.query_one("#servers-panel").display
        await pilot.resize_terminal(100, 30)
        await until(lambda: app.screen.query_one("#servers-panel").display, "room again")


async def test_empty_fleet_says_what_to_do() -> None:
    app = DflashApp(fake_services(fleet=FakeFleet(replace(snapshot(), servers=(), hosts=()))))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "no servers: add one to the configuration file" in text
        assert "nothing needs attention" in text
        for key in ("enter", "p", "s", "l", "y", "R"):
            await pilot.press(key)
        assert where(app) == "fleet"
