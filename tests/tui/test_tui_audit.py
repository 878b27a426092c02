"""The audit screen and what else carries its verdict, driven by keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from audit_fakes import ENFORCED, IGNORED, UNKNOWN, FakeAudits, entry, rows
from textual.pilot import Pilot
from tui_fakes import NOW, FakeFleet, FakeOperator, fake_services, servers, snapshot
from tui_helpers import screen_text, settle, toasts, until, where

from dflash_backend.audit.badges import Entry, summary_of
from dflash_backend.control.contract import Action
from dflash_backend.core.errors import RefusedError, UnreachableError
from dflash_backend.core.samples import AuditSummary, EffectiveSettings, ServerSnapshot, Snapshot
from dflash_console.tui import auditview
from dflash_console.tui import figures as fig
from dflash_console.tui.app import DflashApp
from dflash_console.tui.attention import notices
from dflash_console.tui.fleetrows import row_of
from dflash_console.tui.screens.confirm import AskScreen
from dflash_console.tui.settings import settings_rows


def audits(**changes: Entry) -> FakeAudits:
    return FakeAudits({"kimi-a": entry(ENFORCED, NOW - 12), "kimi-b": entry(IGNORED, NOW - 12), **changes})


async def at_audit(pilot: Pilot[Any], server: str, text: str) -> DflashApp:
    app = pilot.app
    assert isinstance(app, DflashApp)
    await until(lambda: "kimi-a" in screen_text(app), "fleet")
    app.open_server(server)
    await until(lambda: where(app) == "server", "server")
    await pilot.press("a")
    await until(lambda: where(app) == "audit" and text in screen_text(app), text)
    await settle(pilot)
    return app


@pytest.mark.parametrize("size", [(80, 24), (120, 30), (200, 50)])
async def test_a_gap_is_told_per_layer_with_remedy_and_evidence(size: tuple[int, int]) -> None:
    async with DflashApp(fake_services(audit=audits())).run_test(size=size) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        text = screen_text(app)
        assert "windows are declared and layers attend to everything" in text
        assert "SGLang 0.5.12" in text
        lines = [line for line in text.splitlines() if " sliding " in line]
        assert len(lines) == 5
        for line in lines:
            assert "2048 ━" in line
            assert "┫" in line
            assert "all ━" in line
            assert "╋" in line, "where the declared window ends is marked"
            assert "▶ both ways ✖" in line
        full = next(line for line in text.splitlines() if " 5 full " in line)
        assert full.count("▶") == 2
        assert "both ways ✓" in full
        assert "dflash-console plugin install gpu2" in text
        assert "draft KV visible" in text
        assert "read 12s ago" in text or size[0] == 80
        if size[0] == 200:
            assert "sees past its window, sees ahead" in text


async def test_an_enforced_window_and_one_that_is_not_known() -> None:
    source = audits(**{"qwen-8b": entry(UNKNOWN, NOW)})
    async with DflashApp(fake_services(audit=source)).run_test(size=(120, 30)) as pilot:
        app = await at_audit(pilot, "kimi-a", "ENFORCED")
        assert screen_text(app).count("✓") >= 7
        assert "✖" not in screen_text(app)
        await pilot.press("escape", "escape")
        await until(lambda: where(app) == "fleet", "back")
        app = await at_audit(pilot, "qwen-8b", "UNKNOWN")
        assert "config.json: Permission denied" in screen_text(app)


async def test_y_copies_the_remedy_and_p_opens_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(DflashApp, "copy_to_clipboard", lambda self, text: copied.append(text))
    async with DflashApp(fake_services(audit=audits())).run_test(size=(120, 30)) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        await pilot.press("y")
        await until(lambda: copied, "copied")
        assert copied == ["dflash-console plugin install gpu2"]
        await pilot.press("p")
        await until(lambda: where(app) == "picker", "picker")
        assert getattr(app.screen, "server_name", "") == "kimi-b"
        await pilot.press("escape", "escape", "escape")
        await until(lambda: where(app) == "fleet", "back")
        app = await at_audit(pilot, "kimi-a", "ENFORCED")
        await pilot.press("y")
        await until(lambda: len(copied) == 2, "copied")
        assert "ENFORCED" in copied[1], "where nothing is to be done the report is copied"
        assert "layer_types[0]" in copied[1]


async def test_it_asks_once_when_nothing_is_kept_and_again_with_r() -> None:
    source = audits()
    del source.entries["kimi-b"]
    source.after = entry(IGNORED, NOW)
    source.gate.clear()
    async with DflashApp(fake_services(audit=source)).run_test(size=(120, 30)) as pilot:
        app = await at_audit(pilot, "kimi-b", "reading the server")
        assert source.asked == [("kimi-b", False)]
        source.gate.set()
        await until(lambda: "IGNORED" in screen_text(app), "told")
        source.after = entry(ENFORCED, NOW)
        await pilot.press("r")
        await until(lambda: "ENFORCED" in screen_text(app), "read again")
        assert source.asked == [("kimi-b", False), ("kimi-b", True)]


async def test_a_host_that_does_not_answer_is_a_reason_on_the_screen() -> None:
    source = FakeAudits({})
    source.after = UnreachableError("no answer [/red]", where="host gpu2")
    async with DflashApp(fake_services(audit=source)).run_test(size=(80, 24)) as pilot:
        app = await at_audit(pilot, "kimi-b", "not audited")
        assert "host gpu2: no answer [/red]" in screen_text(app)
        assert "r asks again" in screen_text(app)
        source.after = entry(IGNORED, NOW)
        await pilot.press("r")
        await until(lambda: "IGNORED" in screen_text(app), "told")
        source.after = UnreachableError("gone", where="host gpu2")
        await pilot.press("r")
        await until(lambda: any("gone" in text for text in toasts(app)), "the failure is told")
        assert "IGNORED" in screen_text(app), "what was known stays"


async def test_measuring_asks_first_shows_progress_and_ends_with_bars() -> None:
    source = audits()
    source.gate.clear()
    async with DflashApp(fake_services(audit=source)).run_test(size=(120, 40)) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        await pilot.press("m")
        await until(lambda: isinstance(app.screen, AskScreen), "question")
        await pilot.press("escape")
        await until(lambda: where(app) == "audit", "no")
        assert source.measures == []
        await pilot.press("m")
        await until(lambda: isinstance(app.screen, AskScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: "12/48 requests" in screen_text(app), "progress")
        await pilot.press("escape")
        await until(lambda: where(app) == "server", "left; it goes on")
        source.gate.set()
        await pilot.press("a")
        await until(lambda: "the window is not applied" in screen_text(app), "measured")
        assert "8192 tokens, far beyond the window" in screen_text(app)
        assert source.measures == [("kimi-b", False)]


async def test_a_measurement_can_be_given_up_and_refused() -> None:
    source = audits()
    source.gate.clear()
    async with DflashApp(fake_services(audit=source)).run_test(size=(120, 30)) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        app.measuring.start("kimi-b")
        await until(lambda: "12/48" in screen_text(app), "progress")
        await pilot.press("m")
        await until(lambda: "the measurement was given up" in screen_text(app), "given up")
        source.refusal = RefusedError("3 request(s) of others are running", next_step="wait")
        app.measuring.start("kimi-b")
        await until(lambda: "3 request(s) of others are running" in screen_text(app), "refused")


async def test_measuring_needs_the_backends_leave() -> None:
    operator = FakeOperator()
    operator.refuse[Action.BENCH] = "kimi-b is stopped"
    source = audits()
    async with DflashApp(fake_services(audit=source, operator=operator)).run_test(size=(120, 30)) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        await pilot.press("m")
        await until(lambda: any("kimi-b is stopped" in text for text in toasts(app)), "told")
        assert source.measures == []


async def test_hostile_text_and_a_thousand_layers_are_only_text() -> None:
    nasty = "\x1b]0;owned\x07[bold]\u202e" + "x" * 5000
    report = replace(
        IGNORED,
        subject=nasty,
        sglang_version=nasty,
        layers=tuple(replace(row, kind=nasty) for row in rows(None, causal=False, layers=1000)),
        findings=tuple(replace(one, text=nasty) for one in IGNORED.findings),
        missing=(nasty,),
        remedies=tuple(replace(one, text=nasty, command=nasty) for one in IGNORED.remedies),
    )
    source = audits(**{"kimi-b": entry(report, NOW)})
    async with DflashApp(fake_services(audit=source)).run_test(size=(80, 24)) as pilot:
        app = await at_audit(pilot, "kimi-b", "IGNORED")
        text = screen_text(app)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "what to do" in text, "the layers leave room for the rest"
        await pilot.press("tab", "end", "home", "escape")
        await until(lambda: where(app) == "server", "back")


# What else carries the verdict ----------------------------------------------------------------------------


def audited(name: str, summary: AuditSummary | None, **changes: object) -> ServerSnapshot:
    base = next(one for one in servers() if one.name == name)
    verdict = summary.verdict if summary is not None else None
    return replace(base, audit=verdict, audit_summary=summary, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "badge"),
    [("enforced", "✓"), ("ignored", "✖gap"), ("clamped", "✖gap"), ("declared-but-dropped", "✖gap"),
     ("not-declared", "–"), ("unknown", "?"), (None, "–")],
)  # fmt: skip
def test_every_verdict_has_its_badge(verdict: str | None, badge: str) -> None:
    assert fig.audit_badge(verdict)[0] == badge


def test_the_fleet_shows_the_declared_window_with_its_badge() -> None:
    gap = audited("kimi-b", summary_of(IGNORED), window="config")
    cells = row_of(gap, NOW, 12).cells
    assert "".join(text for text, _ in cells["window"]) == "2048 ✖gap"
    fine = audited("kimi-a", summary_of(ENFORCED), window=4096)
    assert "".join(text for text, _ in row_of(fine, NOW, 12).cells["window"]) == "4096 ✓", (
        "the flag's own value"
    )


def test_needs_attention_says_what_a_gap_costs_and_what_to_do() -> None:
    gap = audited("kimi-b", summary_of(IGNORED), message="")
    (notice,) = notices(Snapshot(at=NOW, servers=(gap,)), NOW)
    assert notice.text == "window 2048 ignored: accept 1.62"
    assert "dflash-console plugin install gpu2" in notice.next_step


@pytest.mark.parametrize(
    ("settings", "flag"),
    [(EffectiveSettings(), "–"), (EffectiveSettings(window_known=True), "no flag"),
     (EffectiveSettings(window=512, window_known=True), "512")],
)  # fmt: skip
def test_settings_tell_the_flag_and_the_window_apart(settings: EffectiveSettings, flag: str) -> None:
    server = audited("kimi-b", summary_of(IGNORED), settings=settings)
    shown = {row.key: row.cells for row in settings_rows(server, None)}
    assert "".join(text for text, _ in shown["window flag"]["granted"]) == flag
    assert "".join(text for text, _ in shown["drafter window"]["granted"]) == "✖ ignored 2048"
    assert not any("off" in text for cells in shown.values() for text, _ in cells["granted"])
    bare = {row.key: row.cells for row in settings_rows(audited("kimi-b", None), None)}
    assert "".join(text for text, _ in bare["drafter window"]["granted"]) == "not audited"


async def test_the_server_screen_has_the_picture_where_there_is_room() -> None:
    app = DflashApp(fake_services(fleet=FakeFleet(snapshot()), audit=audits()))
    async with app.run_test(size=(200, 50)) as pilot:
        await until(lambda: "kimi-a" in screen_text(app), "fleet")
        app.open_server("kimi-b")
        await until(lambda: "╋" in screen_text(app), "picture")
        await settle(pilot)
        await pilot.resize_terminal(80, 24)
        await until(lambda: "╋" not in screen_text(app), "no room for it")


@pytest.mark.parametrize("width", [40, 76, 116, 196])
def test_no_layer_line_is_wider_than_the_panel(width: int) -> None:
    made = auditview.layer_lines(rows(None, causal=False), width, 262_144)
    made += auditview.layer_lines(rows(64, causal=True, window=100_000), width, 32_768)
    for line in made:
        assert len("".join(text for text, _ in line)) <= max(width, 60)
