"""From a key to an outcome: preview, confirmation, danger, refusal, progress, cancel, leaving."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Button
from tui_fakes import COMMAND, FakeOperator, fake_services
from tui_helpers import screen_text, settle, toasts, until, where

from dflash_backend.control.contract import Action, Decision, Outcome, Step
from dflash_backend.core.errors import UnreachableError
from dflash_console.tui.app import DflashApp
from dflash_console.tui.jobs import Job
from dflash_console.tui.planview import plan_lines
from dflash_console.tui.screens.confirm import ConfirmScreen, DangerScreen, QuitScreen
from dflash_console.tui.screens.picker import PickerScreen
from dflash_console.tui.widgets.grid import Grid


async def picker(pilot: Pilot[int], profile: str = "kimi-ddtree16") -> PickerScreen:
    app = pilot.app
    assert isinstance(app, DflashApp)
    await settle(pilot)
    app.open_picker("kimi-a", profile)
    await until(lambda: isinstance(app.screen, PickerScreen) and app.screen.plan, "plan")
    assert isinstance(app.screen, PickerScreen)
    return app.screen


async def test_the_preview_shows_changes_warnings_memory_and_the_exact_command() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await picker(pilot)
        assert screen.plan is not None
        await settle(pilot)
        text = screen_text(app)
        for words in (
            "speculative-ddtree-budget",
            "0.85",
            "0.82",
            "live",
            "restart",
            "KV pool shrinks",
            "free 7.8 GiB per GPU",
            "about 11 min",
            "--speculative-ddtree-topk 8",
        ):
            assert words in text, words
        await pilot.press("y")
        await until(lambda: app.clipboard == COMMAND, "the exact command is copied")


async def test_cancel_is_the_default_and_changes_nothing() -> None:
    operator = FakeOperator()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await settle(pilot)
        assert app.focused is app.screen.query_one("#no", Button)
        text = screen_text(app)
        for words in ("kimi-a-20261130-1003", "pid 4711", "alice@laptop", "2 running, 0 queued"):
            assert words in text, words
        await pilot.press("enter")
        await until(lambda: where(app) == "picker", "back in the picker")
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("escape")
        await until(lambda: where(app) == "picker", "back in the picker")
        assert operator.executed == []


async def test_apply_runs_the_plan_that_was_shown_and_tells_every_step() -> None:
    operator = FakeOperator()
    operator.gate.clear()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        shown = (await picker(pilot)).plan
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: where(app) == "progress", "progress")
        await until(lambda: "46/64 shards" in screen_text(app), "step on the screen")
        assert operator.executed == [shown]
        await until(lambda: "71%" in screen_text(app), "71%")
        # Leaving does not stop it; the fleet says what is in progress.
        await pilot.press("escape")
        await until(lambda: where(app) == "fleet", "fleet")
        assert app.jobs.busy("kimi-a") == "apply kimi-ddtree16"
        app.screen.query_one("#servers", Grid).select("kimi-a")
        await pilot.press("s")
        await until(lambda: toasts(app), "refused meanwhile")
        assert "apply kimi-ddtree16 is in progress on this server" in toasts(app)[0]
        operator.gate.set()
        await until(lambda: not app.jobs.running(), "done")
        await until(lambda: any("kimi-a serves kimi-ddtree16" in text for text in toasts(app)), "told")
        await pilot.press("g")
        await until(lambda: where(app) == "progress", "progress again")
        await until(lambda: "✖ fa3" in screen_text(app), "asked against granted")


async def test_a_danger_needs_a_confirmation_of_its_own() -> None:
    operator = FakeOperator(danger=True)
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: isinstance(app.screen, DangerScreen), "danger")
        await until(lambda: "--trust-remote-code" in screen_text(app), "--trust-remote-code")
        await pilot.press(*"kimi", "enter")
        await settle(pilot)
        assert isinstance(app.screen, DangerScreen)
        assert app.screen.query_one("#yes", Button).disabled
        assert operator.executed == []
        await pilot.press("minus", "a", "enter")
        await until(lambda: operator.executed, "run")


async def test_the_answers_are_on_the_screen_however_long_the_plan_is() -> None:
    operator = FakeOperator()

    async def plan(action: Action, server: str, profile: str | None = None):  # type: ignore[no-untyped-def]
        full = await FakeOperator.plan(operator, action, server, profile)
        return replace(full, memory_forecast=tuple(f"forecast {number}" for number in range(40)))

    operator.plan = plan  # type: ignore[method-assign]
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(80, 24)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await until(lambda: "pgdn: more" in screen_text(app), "told that there is more")
        assert re.search(r"cancel +apply", screen_text(app))
        await pilot.press("pagedown", "pagedown", "pagedown")
        await until(lambda: "forecast 39" in screen_text(app), "its end")
        assert re.search(r"cancel +apply", screen_text(app))
        await pilot.press("escape")
        await settle(pilot)
        assert operator.executed == []


async def test_a_step_has_ended_when_the_next_one_begins() -> None:
    job = Job(plan=await FakeOperator().plan(Action.START, "kimi-a"), started_at=0.0)
    job.add(Step(name="weights", state="running", text="1/2"))
    job.add(Step(name="weights", state="running", text="2/2"))
    assert job.steps["weights"].state == "running"
    job.add(Step(name="graphs", state="running"))
    job.add(Step(name="ready", state="failed", text="out of memory"))
    assert {name: step.state for name, step in job.steps.items()} == {
        "weights": "done",
        "graphs": "failed",
        "ready": "failed",
    }


async def test_the_question_before_a_stop_compares_no_profiles() -> None:
    plan = replace(await FakeOperator().plan(Action.STOP, "kimi-a"), changes=(), expected_s=None)
    said = "\n".join("".join(text for text, _ in line) for line in plan_lines(plan, 66, command=False))
    assert "ends the server" in said
    for words in ("changes", "not known", f"from {plan.from_profile}"):
        assert words not in said


async def test_a_plan_that_is_refused_cannot_be_run() -> None:
    operator = FakeOperator()

    async def plan(action: Action, server: str, profile: str | None = None):  # type: ignore[no-untyped-def]
        full = await FakeOperator.plan(operator, action, server, profile)
        return replace(full, refusals=("SGLang 0.5.11 does not know --speculative-ddtree-budget",))

    operator.plan = plan  # type: ignore[method-assign]
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await until(
            lambda: "cannot run: SGLang 0.5.11 does not know" in screen_text(app),
            "cannot run: SGLang 0.5.11 does not know",
        )
        await pilot.press("enter")
        await until(lambda: toasts(app), "told")
        assert where(app) == "picker"
        assert operator.executed == []


async def test_what_becomes_forbidden_while_the_question_stands_is_not_done() -> None:
    operator = FakeOperator()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        operator.refuse[Action.APPLY] = "the host is unreachable"
        await pilot.press("right", "enter")
        await until(lambda: toasts(app), "told")
        assert toasts(app) == ["not done: the host is unreachable"]
        assert operator.executed == []


async def test_read_only_shows_the_preview_and_refuses_to_apply() -> None:
    operator = FakeOperator(read_only=True)
    app = DflashApp(fake_services(operator=operator, read_only=True))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: toasts(app), "refused")
        assert toasts(app) == ["apply is disabled because the console was started with --read-only"]
        assert operator.executed == []


async def test_a_profile_with_a_mistake_says_file_line_and_what_to_do() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.open_picker("kimi-a", "kimi-old")
        await until(lambda: "unknown key 'buget'" in screen_text(app), "the problem")
        await pilot.press("enter")
        await until(lambda: toasts(app) == ["there is no plan to apply yet"], "refused")


async def test_no_plan_from_an_unreachable_host_says_the_next_step() -> None:
    operator = FakeOperator()

    async def plan(action: Action, server: str, profile: str | None = None):  # type: ignore[no-untyped-def]
        raise UnreachableError("no answer", where="gpu1", next_step="hosts check gpu1")

    operator.plan = plan  # type: ignore[method-assign]
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.open_picker("kimi-a")
        await until(lambda: "next: hosts check gpu1" in screen_text(app), "next step")
        await pilot.press("escape")
        app.screen.query_one("#servers", Grid).select("kimi-a")
        await pilot.press("s")
        await until(lambda: any("hosts check gpu1" in text for text in toasts(app)), "told")


@pytest.mark.parametrize(("server", "action"), [("kimi-a", Action.STOP), ("scratch", Action.START)])
async def test_s_means_stop_or_start_and_asks(server: str, action: Action) -> None:
    operator = FakeOperator()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        app.screen.query_one("#servers", Grid).select(server)
        await pilot.press("s")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: operator.executed, "run")
        assert operator.executed[0].action is action


async def test_a_failed_action_shows_its_exit_code_and_details() -> None:
    operator = FakeOperator()
    operator.outcome = Outcome(
        ok=False,
        summary="kimi-a did not get ready; kimi-ddtree8 runs again",
        exit_code=5,
        details=("weights: CUDA out of memory [/x]",),
    )
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: "exit code 5" in screen_text(app), "outcome")
        await until(lambda: "CUDA out of memory [/x]" in screen_text(app), "CUDA out of memory [/x]")


@pytest.mark.parametrize(
    "error", [UnreachableError("lost", next_step="retry"), RuntimeError("secret in a local")]
)
async def test_an_action_that_breaks_inside_ends_with_an_outcome(error: Exception) -> None:
    operator = FakeOperator()

    async def execute(plan: object):  # type: ignore[no-untyped-def]
        raise error
        yield

    operator.execute = execute  # type: ignore[method-assign,assignment]
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: (job := app.jobs.of("kimi-a")) and job.outcome, "outcome")
        await settle(pilot)
        text = screen_text(app)
        assert "failed" in text
        assert "secret in a local" not in text


async def test_cancel_asks_and_says_what_was_left() -> None:
    operator = FakeOperator()
    operator.gate.clear()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: "46/64 shards" in screen_text(app), "in progress")
        await pilot.press("c")
        await until(lambda: where(app) == "AskScreen", "question")
        await pilot.press("right", "enter")
        await until(lambda: not app.jobs.running(), "ended")
        await until(lambda: "cancelled during: weights 46/64 shards" in screen_text(app), "said")


async def test_leaving_asks_only_while_something_is_in_progress() -> None:
    operator = FakeOperator()
    operator.gate.clear()
    app = DflashApp(fake_services(operator=operator))
    async with app.run_test(size=(120, 30)) as pilot:
        await picker(pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ConfirmScreen), "question")
        await pilot.press("right", "enter")
        await until(lambda: app.jobs.running(), "in progress")
        await until(lambda: where(app) == "progress", "progress")
        await pilot.press("q")
        await until(lambda: isinstance(app.screen, QuitScreen), "asks")
        await until(
            lambda: "apply kimi-ddtree16 on kimi-a" in screen_text(app), "apply kimi-ddtree16 on kimi-a"
        )
        assert "goes on by itself" in screen_text(app)
        await pilot.press("enter")
        await until(lambda: where(app) == "progress", "stayed")
        operator.gate.set()
        await until(lambda: not app.jobs.running(), "done")
        await pilot.press("q")
        await until(lambda: not app.is_running, "left")
    assert app.return_code == 0


async def test_ctrl_q_leaves_at_once_when_nothing_is_in_progress() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+q")
        await until(lambda: not app.is_running, "left")


async def test_a_profile_filter_narrows_the_list() -> None:
    app = DflashApp(fake_services())
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await picker(pilot)
        await pilot.press("slash", *"chain")
        await until(
            lambda: [r.key for r in screen.query_one("#profiles", Grid).rows] == ["kimi-chain"], "one"
        )


def test_decisions_are_asked_for_the_server_and_host_that_are_meant() -> None:
    asked: list[tuple[Action, str | None, str | None]] = []

    class Asking(FakeOperator):
        def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
            asked.append((action, server, host))
            return Decision(allowed=True)

    from tui_fakes import hosts, servers

    from dflash_console.tui.deciders import Context, start_stop

    context = Context(
        services=fake_services(operator=Asking()), screen="fleet", server=servers()[0], host=hosts()[0]
    )
    assert start_stop(context).allowed
    assert asked == [(Action.STOP, "kimi-a", "gpu1")]
