"""The server screen and the log: figures, settings asked and granted, follow, wrap, filter, copy, save."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from tui_fakes import (
    LOG,
    PROFILES,
    Clock,
    FakeFleet,
    FakeLogs,
    fake_services,
    gpus,
    more_servers,
    servers,
    snapshot,
)
from tui_helpers import screen_text, settle, toasts, until, where

from dflash_backend.core.samples import RunStatus
from dflash_backend.core.states import ServerState
from dflash_console.tui.app import DflashApp
from dflash_console.tui.memorylines import memory_lines
from dflash_console.tui.screens.log import LogScreen
from dflash_console.tui.screens.server import ServerScreen
from dflash_console.tui.settings import settings_rows
from dflash_console.tui.widgets.chart import Chart
from dflash_console.tui.widgets.logview import LogView


async def opened(pilot: Pilot[int], name: str = "kimi-a") -> LogView:
    app = pilot.app
    assert isinstance(app, DflashApp)
    await settle(pilot)
    app.open_server(name)
    await until(lambda: where(app) == "server", "server screen")
    await until(lambda: app.screen.is_mounted and app.screen.query(LogView), "log view")
    view = app.screen.query_one(LogView)
    await until(lambda: view.has_focus, "focus on the log")
    return view


async def test_figures_settings_memory_and_log_are_there() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 40)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == len(LOG), "log read")
        await until(lambda: "#running-req" in screen_text(app), "log painted")
        for words in (
            "● ready",
            "gpu1:30000",
            "kimi-ddtree8",
            "148.2",
            "4.31",
            "B 4→8",
            "232448",
            "0.5.23",
            "weights 72.5",
            "81%",
        ):
            await until(lambda words=words: words in screen_text(app), words)  # type: ignore[misc]


def test_a_granted_value_that_was_not_asked_is_marked() -> None:
    server = servers()[0]
    assert server.settings is not None
    other = replace(server, settings=replace(server.settings, budget=4, raw={"tp_size": 8.0}))
    rows = {row.key: row for row in settings_rows(other, PROFILES[0])}
    assert rows["budget"].cells["granted"] == (("✖ ", "bad"), ("4", "bad"))
    assert rows["topk"].cells["granted"] == (("8", "text"),)
    assert rows["tp-size"].cells["granted"] == (("8.0", "text"),)
    assert rows["mem-fraction-static"].cells["granted"] == (("–", "dim"),)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16, 64])
@pytest.mark.parametrize("width", [20, 42, 70, 130])
@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_memory_shows_every_gpu_or_says_how_many_are_left_out(count: int, width: int, most: int) -> None:
    server = replace(servers()[0], gpus=gpus(count, 0.5))
    lines = memory_lines(server, width, most)
    assert 1 <= len(lines) <= most
    text = "\n".join("".join(piece for piece, _ in line) for line in lines)
    shown = text.count("%") - text.count("% ") * 0
    per_gpu = 2 if "W" in text else 1
    if "more" in text:
        hidden = int(text.split("… ")[1].split(" ")[0])
        assert shown // per_gpu + hidden == count
    else:
        assert shown // per_gpu == count


async def test_a_server_without_gpu_shows_its_process() -> None:
    app = DflashApp(fake_services(fleet=FakeFleet(snapshot(*more_servers()))))
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "cpu-demo")
        text = screen_text(app)
        assert "memory of the process   no GPU" in text
        assert "resident 0.6 GiB" in text


async def test_a_failed_server_shows_exit_code_and_the_lines_that_say_why() -> None:
    tail = "loading\nRuntimeError: no kernel image [/bold] for sm_120"
    broken = replace(
        more_servers()[0],
        run=RunStatus(run_id="r", server="broken", folder="/r", manager="setsid", exit_code=1, log_tail=tail),
    )
    app = DflashApp(fake_services(fleet=FakeFleet(replace(snapshot(), servers=(broken,)))))
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "broken")
        text = screen_text(app)
        assert "failed, exit code 1" in text
        assert "RuntimeError: no kernel image [/bold] for sm_120" in text


async def test_follow_pauses_when_scrolled_and_goes_on_with_f() -> None:
    logs = FakeLogs([f"line {i}" for i in range(300)])
    app = DflashApp(fake_services(logs=logs))
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.allow_vertical_scroll and view.virtual_size.height == 300, "can be scrolled")
        await pilot.press("pageup")
        await until(lambda: not view.follow, "paused")
        await until(lambda: "paused" in screen_text(app), "said in the title")
        top = view.visible_lines()[0]
        logs.queue.put_nowait([f"new {i}" for i in range(50)])
        await until(lambda: view.store.total == 350, "new lines are there")
        await until(lambda: view.virtual_size.height == 350, "painted")
        assert view.visible_lines()[0] == top
        await pilot.press("f")
        await until(lambda: view.visible_lines()[-1] == "new 49", "the end again")


async def test_a_paused_reader_keeps_the_line_when_it_wraps_or_filters() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        view.write([f"{'odd' if number % 2 else 'even'} {number} " + "x" * 300 for number in range(200)])
        await until(lambda: view.store.rows > 200 and view.scroll_offset.y > 150, "at the end")
        await pilot.press("f")
        await until(lambda: not view.follow, "paused")
        first = view.visible_lines()[0]
        await pilot.press("w")
        await until(lambda: view.wrap and view.visible_lines()[0] == first, "the same line, wrapped")
        view.filter = "odd"
        await until(lambda: all("odd" in line for line in view.visible_lines()), "filtered")
        number = int(first.split()[1])
        assert view.visible_lines()[0].split()[1] == str(number if number % 2 else number + 1)
        view.filter = ""
        await until(lambda: any("even" in line for line in view.visible_lines()), "all lines again")
        assert view.visible_lines()[0].startswith("odd")


async def test_a_paused_reader_keeps_the_place_while_old_lines_fall_out() -> None:
    logs = FakeLogs([f"line {i}" for i in range(500)])
    app = DflashApp(fake_services(logs=logs))
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        view.store.max_lines = 600
        await until(lambda: view.allow_vertical_scroll and view.virtual_size.height == 500, "can be scrolled")
        await pilot.press("pageup")
        await until(lambda: not view.follow, "paused")
        top = view.visible_lines()[0]
        logs.queue.put_nowait([f"new {i}" for i in range(300)])
        await until(lambda: view.store.dropped == 200, "old ones fell out")
        await until(lambda: "200 older dropped" in screen_text(app), "told")
        assert view.visible_lines()[0] == top


async def test_filter_wrap_and_the_scroll_sideways() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == len(LOG), "log read")
        await pilot.press("slash", *"ERROR", "enter")
        await until(lambda: view.store.shown == 1, "filtered")
        await until(lambda: "1 of 24 lines" in screen_text(app), "1 of 24 lines")
        await pilot.press("escape")
        await until(lambda: view.store.shown == len(LOG), "filter cleared")
        await pilot.press("w")
        await until(lambda: view.wrap and view.virtual_size.height > len(LOG), "wrapped")
        assert view.max_scroll_x == 0
        await pilot.press("w")
        await until(lambda: view.max_scroll_x > 0, "sideways again")


async def test_save_says_where_and_writes_what_is_shown(tmp_path: Path) -> None:
    app = DflashApp(fake_services(save_dir=tmp_path / "logs"))
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == len(LOG), "log read")
        await pilot.press("slash", *"fired", "enter", "S")
        path = tmp_path / "logs" / "kimi-a-20261130-124107.log"
        await until(path.exists, "saved")
        assert path.read_text() == "[2026-11-30 12:37:25] The server is fired up and ready to roll!\n"
        assert path.stat().st_mode & 0o777 == 0o600
        await until(lambda: any(str(path) in text for text in toasts(app)), "told where")


async def test_a_save_that_fails_says_what_to_do(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    app = DflashApp(fake_services(save_dir=blocked / "logs"))
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == len(LOG), "log read")
        await pilot.press("S")
        await until(lambda: any("was not saved" in text for text in toasts(app)), "told")


async def test_the_charts_are_drawn_for_the_size_they_have() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        for size in ((100, 30), (120, 40), (80, 24), (200, 50), (61, 16)):
            await pilot.resize_terminal(*size)
            await until(lambda: app.size == size, "resized")  # noqa: B023
            for chart in app.screen.query(Chart):
                await until(
                    lambda: (
                        chart.size.height < 2  # noqa: B023
                        or "0.0┤" in chart.render_line(chart.size.height - 1).text  # noqa: B023
                        or " 0┤" in chart.render_line(chart.size.height - 1).text  # noqa: B023
                        or "now" in chart.render_line(chart.size.height - 1).text  # noqa: B023
                    ),
                    f"{chart.id} at {size}",
                )


async def test_text_marked_with_the_mouse_is_what_is_copied() -> None:
    app = DflashApp(fake_services(logs=FakeLogs([f"alpha beta {i}" for i in range(5)])))
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == 5 and "alpha beta 4" in screen_text(app), "log read")
        await settle(pilot)
        await pilot.mouse_down(view, offset=(6, 1))
        await pilot.hover(view, offset=(9, 2))
        await pilot.mouse_up(view, offset=(9, 2))
        await until(lambda: app.screen.get_selected_text(), "marked")
        await pilot.press("y")
        await until(lambda: app.clipboard == "beta 1\nalpha beta", "copied")


async def test_panels_say_how_old_they_are() -> None:
    clock = Clock()
    app = DflashApp(fake_services(clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        assert "old" not in screen_text(app).split("log ")[0]
        clock.now += 20
        await until(lambda: screen_text(app).count("21s old") == 2, "charts and memory", 4)


async def test_copy_takes_the_visible_lines() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot)
        await until(lambda: view.store.total == len(LOG) and view.is_vertical_scroll_end, "log read")
        await pilot.press("y")
        await until(lambda: app.clipboard, "copied")
        assert app.clipboard.splitlines() == list(LOG[-len(app.clipboard.splitlines()) :])


async def test_ten_thousand_lines_a_second_are_kept_up_with() -> None:
    """Counts work, not time: 50,000 lines in 500 batches take a bounded number of paints."""
    logs = FakeLogs([])
    app = DflashApp(fake_services(logs=logs))
    async with app.run_test(size=(120, 40)) as pilot:
        view = await opened(pilot)
        paints = 0
        flush = view._flush

        def counted() -> None:
            nonlocal paints
            paints += 1
            flush()

        view._flush = counted  # type: ignore[method-assign]
        began = time.monotonic()
        for i in range(500):
            logs.queue.put_nowait(
                [f"[TP0] Decode batch, #token: {i * 100 + j}, cuda graph: True" for j in range(100)]
            )
        await until(lambda: view.store.total == 50_000, "all lines came", 60)
        spent = time.monotonic() - began
        assert len(view.store) == view.store.max_lines
        assert view.store.dropped == 50_000 - view.store.max_lines
        assert paints <= spent / 0.1 + 2


async def test_a_source_that_never_waits_does_not_block_the_keys() -> None:
    class Endless:
        async def follow(self, server: str):  # type: ignore[no-untyped-def]
            number = 0
            while True:
                number += 1
                yield [f"line {number}"] * 200

    app = DflashApp(fake_services(logs=Endless()))
    async with app.run_test(size=(100, 30)) as pilot:
        app.open_server("kimi-a")
        await until(lambda: app.screen.query(LogView), "server screen")
        await asyncio.wait_for(app.screen.run_action("act('back')"), 10)
        await until(lambda: where(app) == "fleet", "left", 10)
        del pilot


async def test_the_log_says_why_there_are_no_lines_and_begins_again_with_a_new_run() -> None:
    fleet, logs = FakeFleet(), FakeLogs(["first run"])
    app = DflashApp(fake_services(fleet=fleet, logs=logs))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        app.push_screen(LogScreen("scratch"))
        await until(lambda: "scratch has no run on its host yet" in screen_text(app), "reason")
        await pilot.press("escape")
        app.push_screen(LogScreen("kimi-a"))
        await until(lambda: "first run" in screen_text(app), "first run's log")
        logs.queue.put_nowait(None)
        await until(lambda: "the run is over" in screen_text(app), "said")
        logs.lines = ["second run"]
        old = snapshot().servers[0]
        assert old.run is not None
        new = replace(old, run=replace(old.run, run_id="another"), state=ServerState.STARTING)
        fleet.push(replace(snapshot(), servers=(new,)))
        await until(lambda: "second run" in screen_text(app), "new run's log")
        await until(lambda: "first run" not in screen_text(app), "first run")


async def test_a_server_that_left_the_configuration_is_said_so() -> None:
    fleet = FakeFleet()
    app = DflashApp(fake_services(fleet=fleet))
    async with app.run_test(size=(120, 30)) as pilot:
        await opened(pilot)
        fleet.push(replace(snapshot(), servers=()))
        await until(lambda: "not in the configuration any more" in screen_text(app), "said")
        for key in ("p", "s", "b", "t"):
            await pilot.press(key)
        assert isinstance(app.screen, ServerScreen | LogScreen) or where(app) == "bench"
