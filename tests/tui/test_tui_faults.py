"""Errors nobody expected: no secret, no local variable, a plain message, a log that can be read."""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tui_fakes import FakeFleet, FakeLogs, fake_services
from tui_helpers import screen_text, settle, toasts, until

from dflash_backend.core.errors import UnreachableError
from dflash_console.tui import faults
from dflash_console.tui.app import DflashApp

SECRET = "hf_abcdefghijklmnopqrstuvwx"


async def test_an_error_in_a_handler_ends_with_plain_words_and_without_locals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = DflashApp(fake_services(log_dir=tmp_path))

    def broken() -> None:
        api_key = SECRET  # noqa: F841 (what a traceback with locals would print)
        raise RuntimeError(f"broken with --api-key {SECRET} [/bold]\x1b]0;x\x07")

    async def lives() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot)
            app.call_later(broken)
            await until(lambda: not app.is_running, "ended")

    with pytest.raises(RuntimeError, match="broken"):
        await lives()
    out = capsys.readouterr()
    told = out.out + out.err
    assert "dflash-console stopped because of an error in itself: RuntimeError: broken with" in told
    assert "servers go on as they were" in told
    assert str(tmp_path / "console.log") in told.replace("\n", "")
    assert "Traceback" not in told
    assert SECRET not in told
    assert "\x1b]0" not in told
    assert app.return_code == 5
    log = (tmp_path / "console.log").read_text()
    assert "RuntimeError" in log
    assert "in broken" in log
    assert SECRET not in log
    assert "\x1b" not in log
    assert stat.S_IMODE((tmp_path / "console.log").stat().st_mode) == 0o600


async def test_an_error_in_the_background_is_a_message_and_the_console_goes_on(tmp_path: Path) -> None:
    class Broken(FakeLogs):
        async def follow(self, server: str):  # type: ignore[no-untyped-def]
            raise ValueError("unexpected")
            yield

    app = DflashApp(fake_services(logs=Broken(), log_dir=tmp_path))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        app.open_server("kimi-a")
        await until(lambda: any("log of kimi-a failed: ValueError" in text for text in toasts(app)), "told")
        await pilot.press("escape")
        await until(lambda: app.is_running, "goes on")
    assert "ValueError: unexpected" in (tmp_path / "console.log").read_text()


async def test_a_fleet_that_fails_is_told_and_watched_again(tmp_path: Path) -> None:
    class Failing(FakeFleet):
        begun = 0

        async def start(self) -> None:
            self.begun += 1
            if self.begun == 1:
                raise UnreachableError("no answer", where="gpu1", next_step="check the address")

    fleet = Failing()
    app = DflashApp(fake_services(fleet=fleet, log_dir=tmp_path))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await until(lambda: any("next: check the address" in text for text in toasts(app)), "told")
        assert "kimi-a" in screen_text(app)
        await until(lambda: fleet.begun == 2, "watched again", 12)


def test_a_log_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert faults.log_to_file(blocked / "x") is None
    logging.getLogger("dflash_console.tui").error("nowhere to go")


def test_the_log_rotates(tmp_path: Path) -> None:
    path = faults.log_to_file(tmp_path)
    assert path is not None
    logger = logging.getLogger("dflash_console.tui")
    for _ in range(12):
        logger.error("x" * 19_000 + f" --api-key {SECRET}")
    for handler in logging.getLogger("dflash_console").handlers:
        handler.maxBytes = 50_000  # type: ignore[attr-defined]
    for _ in range(12):
        logger.error("y" * 19_000)
    assert (tmp_path / "console.log").stat().st_size < 60_000
    assert (tmp_path / "console.log.1").exists()
    assert SECRET not in "".join(f.read_text() for f in tmp_path.iterdir())
    faults.log_to_file(tmp_path)


@pytest.mark.parametrize("theme", ["dark", "light", "ansi"])
async def test_themes_and_no_color(theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for no_color in (False, True):
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        app = DflashApp(fake_services(theme=theme))
        async with app.run_test(size=(100, 30)) as pilot:
            await settle(pilot)
            app.open_server("kimi-a")
            await until(lambda: "148.2" in screen_text(app), "painted")  # noqa: B023
            await pilot.press("question_mark")
            await settle(pilot)
            if no_color:
                strips = app.screen._compositor.render_strips()
                colors = {s.style.color for strip in strips for s in strip if s.style and s.style.color}
                assert all(c.triplet is None or len(set(c.triplet)) == 1 for c in colors)


async def test_an_unknown_theme_is_told() -> None:
    app = DflashApp(fake_services(theme="solarised"))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await until(lambda: any("no theme is called 'solarised'" in text for text in toasts(app)), "told")


def test_importing_the_app_loads_no_ssh_and_no_http() -> None:
    code = (
        "import sys, dflash_console.tui.app, dflash_console.tui.screens.fleet\n"
        "print(sorted({'asyncssh', 'aiohttp', 'numpy', 'torch', 'dflash_engine'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"


def test_no_widget_and_no_screen_reads_markup() -> None:
    """Statics are made with markup off, titles through ``set_title`` or from our own words."""
    root = Path(faults.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        for call in re.findall(r"(?:Static|Label)\((?:[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*\)", text):
            assert "markup=False" in call, f"{path.name}: {call}"
        for title in re.findall(r"border_(?:sub)?title = (.+)", text):
            assert title.startswith(('"', "Content(")) or title == "title", f"{path.name}: {title}"
        assert "from_markup" not in text
        assert "notify(" not in text or "markup=True" not in text
