"""Hosts (keys, doctor, retry) and benchmarks (live cells, earlier runs, stop)."""

from __future__ import annotations

from dataclasses import replace

from tui_fakes import FakeBench, FakeFleet, FakeHosts, FakeOperator, fake_services, hosts, snapshot
from tui_helpers import keys, screen_text, settle, toasts, until, where

from dflash_backend.bench.cell import CellProgress
from dflash_backend.control.contract import Action
from dflash_backend.core.errors import RefusedError, UnreachableError
from dflash_backend.core.states import LinkState
from dflash_console.bench_states import next_state
from dflash_console.tui.app import DflashApp
from dflash_console.tui.benchrows import notes_of, run_sign, wrapped
from dflash_console.tui.screens.confirm import AskScreen, QuitScreen
from dflash_console.tui.services import BenchCell, BenchState
from dflash_console.tui.widgets.grid import Grid


async def test_an_unknown_key_is_trusted_only_after_its_fingerprint_was_shown() -> None:
    care = FakeHosts()
    app = DflashApp(fake_services(hosts=care))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        app.open_hosts("gpu12")
        await until(lambda: where(app) == "hosts", "hosts")
        await settle(pilot)
        await pilot.press("T")
        await until(lambda: isinstance(app.screen, AskScreen), "question")
        await until(
            lambda: "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE" in screen_text(app), "fingerprint"
        )
        assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in screen_text(app)
        await pilot.press("enter")
        await until(lambda: where(app) == "hosts", "the safe answer is first")
        assert care.trusted == []
        await pilot.press("T")
        await until(lambda: isinstance(app.screen, AskScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: care.trusted, "trusted")
        assert care.trusted == [("gpu12", "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE")]


async def test_a_changed_key_is_never_trusted_from_here() -> None:
    changed = replace(hosts()[0], state=LinkState.KEY_CHANGED, message="SHA256:new instead of SHA256:old")
    app = DflashApp(fake_services(fleet=FakeFleet(replace(snapshot(), hosts=(changed,)))))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        assert "host key CHANGED" in screen_text(app)
        app.open_hosts("gpu1")
        await until(lambda: where(app) == "hosts", "hosts")
        await settle(pilot)
        await pilot.press("T")
        await until(lambda: toasts(app), "refused")
        assert "a changed key is never trusted over the old one" in toasts(app)[0]


async def test_the_doctor_shows_findings_with_their_next_step() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.open_hosts("gpu1")
        await until(lambda: where(app) == "hosts", "hosts")
        await settle(pilot)
        await pilot.press("d")
        await until(lambda: "6 checks, 1 failed" in screen_text(app), "findings")
        assert "next: free at least 40 GiB" in screen_text(app)
        await pilot.press("down")
        await until(lambda: "d runs the doctor" in screen_text(app), "other host, no findings")


async def test_errors_about_hosts_are_messages_with_the_next_step() -> None:
    class Broken(FakeHosts):
        async def offered_key(self, host: str):  # type: ignore[no-untyped-def]
            raise UnreachableError("no answer", where=host, next_step="check the address")

        async def retry(self, host: str) -> None:
            raise RefusedError("authentication failed", where=host, next_step="ssh-add")

        async def check(self, host: str):  # type: ignore[no-untyped-def]
            raise UnreachableError("no answer", where=host, next_step="check the address")
            yield

    app = DflashApp(fake_services(hosts=Broken()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        app.open_hosts("gpu12")
        await until(lambda: where(app) == "hosts", "hosts")
        await settle(pilot)
        await pilot.press("T", "d")
        await until(lambda: any("next: check the address" in text for text in toasts(app)), "told")
        await until(lambda: "next: check the address" in screen_text(app), "doctor")
        await pilot.press("r")
        await until(lambda: any("next: ssh-add" in text for text in toasts(app)), "told")
        assert where(app) == "hosts"


async def test_forgetting_a_key_asks_and_read_only_refuses() -> None:
    care, operator = FakeHosts(), FakeOperator()
    app = DflashApp(fake_services(hosts=care, operator=operator))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        app.open_hosts("gpu2")
        await until(lambda: where(app) == "hosts", "hosts")
        await settle(pilot)
        operator.refuse[Action.FORGET_KEY] = "read-only"
        await pilot.press("F")
        await until(lambda: toasts(app), "refused")
        del operator.refuse[Action.FORGET_KEY]
        await pilot.press("F")
        await until(lambda: isinstance(app.screen, AskScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: care.forgotten == ["gpu2"], "forgotten")


async def test_a_benchmark_shows_cells_as_they_come_and_survives_leaving_the_screen() -> None:
    bench = FakeBench()
    app = DflashApp(fake_services(bench=bench))
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(pilot)
        app.open_bench("kimi-a")
        await until(lambda: where(app) == "bench" and keys(app, "#jobs"), "jobs")
        await pilot.press("r")
        await until(lambda: "3/5 cells" in screen_text(app), "cells")
        text = screen_text(app)
        for words in (
            "43%",
            "148.9",
            "4.36",
            "190/301",
            "waiting",
            "2 requests retracted",
            "about 4 min more",
        ):
            assert words in text, words
        await pilot.press("r")
        await until(lambda: "a benchmark is running: x stops it" in toasts(app), "one at a time")
        await pilot.press("escape")
        await until(lambda: where(app) == "fleet", "left")
        assert app.bench.running
        await pilot.press("q")
        await until(lambda: isinstance(app.screen, QuitScreen), "asks before leaving")
        await pilot.press("escape")
        bench.gate.set()
        await until(lambda: not app.bench.running, "finished")
        app.open_bench("kimi-a")
        await until(lambda: "5/5 cells" in screen_text(app), "result")
        assert "server answered 503 to 12 of 128 requests" in screen_text(app)
        await pilot.press("y")
        await until(lambda: app.clipboard.startswith("arm\tpoint\t"), "copied as a table")


async def test_x_stops_a_benchmark() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.open_bench("kimi-a")
        await until(lambda: where(app) == "bench" and keys(app, "#jobs"), "jobs")
        await pilot.press("r")
        await until(lambda: app.bench.running, "running")
        await pilot.press("x")
        await until(lambda: not app.bench.running, "stopped")
        await until(lambda: "finished cells are kept" in screen_text(app), "said")


async def test_earlier_runs_broken_jobs_and_no_runner() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.open_bench("kimi-a")
        await until(lambda: where(app) == "bench" and keys(app, "#jobs"), "jobs")
        grid = app.screen.query_one("#jobs", Grid)
        grid.select("job:broken-job")
        await until(lambda: "concurrency must be at least 1" in screen_text(app), "problem")
        await pilot.press("r")
        await until(lambda: any("cannot be run" in text for text in toasts(app)), "refused")
        grid.select("run:b-20261129-0901")
        await until(lambda: "402.7" in screen_text(app), "earlier run")
    app = DflashApp(fake_services(bench=None))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("b")
        await until(
            lambda: toasts(app) == ["bench is disabled because this console has no benchmark runner"], "said"
        )


def test_a_run_says_how_it_stands_and_long_flags_are_read_whole() -> None:
    cells = (BenchCell(key="a", arm="AR", point="1", state="unclean", flags=("word " * 30,)),)
    run = BenchState(run_id="r", job="j", server="s", cells=cells, started_at=0.0, finished_at=1.0, ok=False)
    assert run_sign(run, running=True)[0] == "◐ "
    assert run_sign(run, running=False)[0] == "⚑ "
    assert run_sign(replace(run, ok=True), running=False)[0] == "✓ "
    broken = replace(run, cells=(replace(cells[0], state="failed"),))
    assert run_sign(broken, running=False)[0] == "✖ "
    lines = wrapped(notes_of(run)[0], 40)
    assert len(lines) > 3
    assert all(sum(len(text) for text, _ in line) <= 40 for line in lines)
    assert "".join(text for line in lines for text, _ in line).count("word") == 30


def test_repeats_are_counted_from_one() -> None:
    started = BenchState(
        run_id="r", job="j", server="s", cells=(BenchCell(key="a", arm="AR", point="1", state="waiting"),)
    )
    progress = CellProgress(
        key="a", concurrency=1, index=0, cells=1, phase="measuring", repeat=0, repeats=3, done=0, total=4
    )
    assert next_state(started, progress, at=0.0).cells[0].message == "measuring, repeat 1 of 3"
