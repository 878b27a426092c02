"""Hostile text on every screen: no control reaches the terminal, no markup is read, nothing breaks.

The text here has NOT passed the boundary, as if a service had forgotten to clean it.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tui_fakes import (
    NOW,
    PROFILES,
    FakeBench,
    FakeFleet,
    FakeHosts,
    FakeLogs,
    FakeOperator,
    FakeProfiles,
    fake_services,
    servers,
    snapshot,
)
from tui_helpers import settle, until, where

from dflash_backend.control.contract import Change, Granted, Outcome, Plan, PlanWarning, Step
from dflash_backend.core.errors import FailedError
from dflash_backend.core.samples import (
    EffectiveSettings,
    GpuSample,
    LinkStatus,
    RunStatus,
    ServerFigures,
    Stage,
)
from dflash_backend.core.states import LinkState, ServerState, StageName
from dflash_backend.telemetry.contract import Mark
from dflash_console.tui.app import DflashApp
from dflash_console.tui.screens.bench import BenchScreen
from dflash_console.tui.screens.confirm import ConfirmScreen, DangerScreen
from dflash_console.tui.screens.hosts import HostsScreen
from dflash_console.tui.screens.log import LogScreen
from dflash_console.tui.screens.picker import PickerScreen
from dflash_console.tui.screens.server import ServerScreen
from dflash_console.tui.services import BenchCell, BenchJob, BenchState, Finding, KeyOffer, ProfileSummary

PARTS = {
    "osc title": "\x1b]0;owned\x07after",
    "osc clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07after",
    "unterminated osc": "\x1b]52;c;cm0gLXJmIC8=",
    "csi clear": "\x1b[2J\x1b[1;1Hafter",
    "c1": "\x9b2J\x9d0;owned\x9cafter",
    "dcs": '\x1bP$q"p\x1b\\after',
    "markup close": "[/bold] [/] [@click=app.quit]x[/] [red",
    "markup brackets": "[[[]]] [2026-11-30 09:11:22 TP0] [/foo]",
    "bidi": "\u202egpj.exe\u2066\u200f",
    "newlines": "one\ntwo\r\nthree\rfour\tfive\x0bsix\x00seven\x08\x7f",
    "wide": "日本語サーバー名" * 20,
    "combining": "e\u0301" * 40 + "\u0336" * 40,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 10,
    "long": "x" * 5000,
    "megabyte": "\x1b]0;A" + "m" * 1_000_000,
    "surrogate": "\ud800\udfff",
    "empty": "",
    "format": "%s {0} {name!r} $c-accent",
}
HOSTILE = {
    "sequences": " ".join(
        PARTS[k] for k in ("osc title", "osc clipboard", "csi clear", "c1", "dcs", "unterminated osc")
    ),
    "markup": " ".join(PARTS[k] for k in ("markup close", "markup brackets", "format")),
    "controls": " ".join(PARTS[k] for k in ("newlines", "bidi", "surrogate")),
    "wide": " ".join(PARTS[k] for k in ("wide", "combining", "emoji")),
    "long": PARTS["long"],
    "megabyte": PARTS["megabyte"],
    "empty": PARTS["empty"],
}
FORBIDDEN = [chr(c) for c in (*range(32), *range(0x7F, 0xA0))] + list("\u202e\u2066\u200f")


def poisoned(text: str) -> dict[str, object]:
    """Every string of every service is ``text``."""
    server = replace(
        servers()[0],
        name="kimi-a",
        host=text,
        profile=text,
        window=text,
        audit=text or None,
        message=text,
        gpus=(
            GpuSample(
                index=0,
                name=text,
                memory_used_mib=1.0,
                memory_total_mib=2.0,
                health="error",
                health_note=text,
            ),
        ),
        gpu_note=text,
        figures=ServerFigures(
            server="kimi-a", at=NOW, decode_tok_s=float("nan"), accept_length=float("inf"), notes={text: text}
        ),
        settings=EffectiveSettings(version=text, model=text, drafter=text, raw={text: text, "tp_size": text}),
        run=RunStatus(
            run_id=text, server=text, folder=text, manager="setsid", started_by=text, log_tail=text
        ),
    )
    failed = replace(server, name=f"f{text}", state=ServerState.FAILED)
    starting = replace(
        server, name=f"s{text}", state=ServerState.STARTING, stage=Stage(name=StageName.GRAPHS)
    )
    lost = replace(server, name=f"u{text}", state=ServerState.UNREACHABLE, at=None)
    links = tuple(
        LinkStatus(host=f"{state}{text}", state=state, since=NOW, message=text, retry_at=NOW + 5)
        for state in LinkState
    )

    class Fleet(FakeFleet):
        def marks(self, server: str, *, since: float) -> tuple[Mark, ...]:
            return (Mark(at=NOW - 100, text=text), Mark(at=NOW - 99, text=text))

    profile = replace(PROFILES[0], name=f"p{text}", description=text, options={text: text, "tp-size": text})

    class Profiles(FakeProfiles):
        def names(self) -> tuple[ProfileSummary, ...]:
            return (
                ProfileSummary(name=profile.name, description=text),
                ProfileSummary(name=f"q{text}", problem=text, origin=text),
            )

    class Operator(FakeOperator):
        async def plan(self, action, server, name=None):  # type: ignore[no-untyped-def]
            return Plan(
                server="kimi-a",
                host=text,
                action=action,
                profile=profile,
                from_profile=text,
                changes=(Change(name=text, before=text, after=text),),
                argv=(text,),
                command=text,
                live=False,
                warnings=(PlanWarning(text=text), PlanWarning(text=text, dangerous=True)),
                memory_forecast=(text,),
            )

        async def execute(self, plan):  # type: ignore[no-untyped-def]
            yield Step(name=f"s{text}", state="running", text=text, progress=0.5)
            yield Outcome(
                ok=False,
                summary=text,
                details=(text,),
                exit_code=6,
                granted=(Granted(name=text, asked=text, granted=text, ok=False),),
            )

    class Logs(FakeLogs):
        async def follow(self, server):  # type: ignore[no-untyped-def]
            yield [text, f"ERROR {text}", text]
            raise FailedError(text, where=text, next_step=text)

    class Bench(FakeBench):
        state = BenchState(
            run_id=f"r{text}",
            job=text,
            server=text,
            message=text,
            cells=(
                BenchCell(
                    key=text,
                    arm=text,
                    point=text,
                    state="unclean",
                    flags=(text,),
                    message=text,
                    tok_s=float("inf"),
                ),
            ),
        )

        async def jobs(self) -> tuple[BenchJob, ...]:
            return (
                BenchJob(name=f"j{text}", description=text, origin=text),
                BenchJob(name=f"k{text}", problem=text),
            )

        async def runs(self) -> tuple[BenchState, ...]:
            return (self.state,)

        async def run(self, job, server):  # type: ignore[no-untyped-def]
            yield self.state

    class Hosts(FakeHosts):
        async def offered_key(self, host: str) -> KeyOffer:
            return KeyOffer(
                host=text,
                address=text,
                key_type=text,
                fingerprint=text,
                known_fingerprint=text,
                compare_with=text,
            )

        async def check(self, host):  # type: ignore[no-untyped-def]
            yield Finding(name=text, level="failed", text=text, next_step=text)
            raise FailedError(text, where=text, next_step=text)

    return {
        "fleet": Fleet(replace(snapshot(), servers=(server, failed, starting, lost), hosts=links)),
        "operator": Operator(),
        "profiles": Profiles(),
        "logs": Logs(),
        "bench": Bench(),
        "hosts": Hosts(),
        "pinned": (text, text),
        "label": text[:20],
    }


def painted(app: DflashApp) -> str:
    """Everything that the screen would send to the terminal as text, without styles."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip if not segment.control) for strip in strips)


def check(app: DflashApp) -> None:
    text = painted(app)
    for line in text.split("\n"):
        bad = [repr(char) for char in FORBIDDEN if char in line]
        assert not bad, (bad, line)
    assert "owned" not in text or "\x1b" not in text
    width = app.size.width
    for strip in app.screen._compositor.render_strips():
        assert sum(segment.cell_length for segment in strip) == width


@pytest.mark.parametrize("name", HOSTILE)
async def test_every_screen_bears_it(name: str) -> None:
    text = HOSTILE[name]
    app = DflashApp(fake_services(**poisoned(text)))
    began = time.monotonic()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot)
        check(app)
        await pilot.press("slash", "g", "escape", "colon", "z", "enter")
        app.notify(text, title=text[:500])
        app.tell(text or "x", "error")
        app.show_error(FailedError(text, where=text, next_step=text))
        await settle(pilot)
        check(app)
        app.clear_notifications()
        for screen, pressed in (
            (ServerScreen("kimi-a"), ("w", "y", "t")),
            (LogScreen("kimi-a"), ("w", "f", "y")),
            (PickerScreen("kimi-a"), ("down", "up", "y")),
            (BenchScreen("kimi-a"), ("r", "down", "down", "y")),
            (HostsScreen(), ("d", "down")),
        ):
            app.push_screen(screen)
            await until(lambda: screen.is_mounted and app.focused, "screen")  # noqa: B023
            await pilot.pause(0.1)
            for key in pressed:
                await pilot.press(key)
            await settle(pilot)
            check(app)
            await pilot.press("question_mark")
            await settle(pilot)
            check(app)
            await pilot.press("escape")
            await pilot.press("ctrl+p")
            await settle(pilot)
            check(app)
            await pilot.press("escape")
            await until(lambda: app.screen is screen, "closed")  # noqa: B023
            app.pop_screen()
        app.open_picker("kimi-a")
        await until(lambda: getattr(app.screen, "plan", None), "plan")
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await settle(pilot)
        check(app)
        await pilot.press("right", "enter")
        await until(lambda: isinstance(app.screen, DangerScreen), "danger")
        await settle(pilot)
        check(app)
        await pilot.press(*(("minus" if c == "-" else c) for c in "kimi-a"), "enter")
        await until(lambda: where(app) == "progress", "progress")
        await until(lambda: not app.jobs.running(), "outcome")
        await settle(pilot)
        check(app)
    assert app.return_code in (0, None)
    # A wide margin: a line of a megabyte must not be looked at again and again.
    assert time.monotonic() - began < 90


@pytest.mark.parametrize("name", ["wide", "controls"])
async def test_ascii_means_ascii_whatever_the_data(name: str) -> None:
    app = DflashApp(fake_services(ascii=True, **poisoned(HOSTILE[name])))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot)
        app.notify(HOSTILE[name])
        for screen in (
            None,
            ServerScreen("kimi-a"),
            PickerScreen("kimi-a"),
            HostsScreen(),
            BenchScreen("kimi-a"),
        ):
            if screen is not None:
                app.push_screen(screen)
                await until(lambda: screen.is_mounted and app.focused, "screen")  # noqa: B023
            await pilot.pause(0.1)
            await pilot.press("question_mark")
            await settle(pilot)
            assert painted(app).isascii()
            await pilot.press("escape")
            await settle(pilot)
            assert painted(app).isascii()
            check(app)
