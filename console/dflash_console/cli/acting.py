"""Running a plan from the command line: shown, confirmed, told step by step, and never left unsaid."""

from __future__ import annotations

import argparse
import sys
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from dflash_backend.control.contract import Action, Decision, Outcome, Plan, Step
from dflash_backend.core.errors import RefusedError
from dflash_console.cli.asking import typed_yes
from dflash_console.cli.live import demand_host, watching

if TYPE_CHECKING:
    from dflash_console.cli.command import Context

ASKED = frozenset({Action.STOP, Action.RESTART, Action.APPLY, Action.ADOPT})
"""Actions that end something that runs, or take it over: they want a yes."""

CHANGING = frozenset({"stop", "launch", "adopt"})
"""Steps from which on something is no longer as it was."""


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """``--yes`` and ``--yes-dangerous``."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--yes-dangerous", action="store_true", help="also accept what the plan marks as dangerous"
    )


def add_drain(parser: argparse.ArgumentParser) -> None:
    """``--drain``."""
    parser.add_argument(
        "--drain",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long at most for requests in flight before stopping (default: do not wait)",
    )


async def act(
    action: Action, args: argparse.Namespace, context: Context, *, profile: str | None = None
) -> int:
    """Plans, confirms, executes; the exit code is the outcome's."""
    server: str = args.server
    context.left = f"nothing was changed on {server}"
    async with watching(context, [server]) as plane:
        snapshot = plane.fleet.snapshot()
        decision = plane.operator.decide(action, server)
        if not plane.operator.policy.read_only:
            demand_host(snapshot, plane.inventory.servers[server].host)
        if not decision.allowed:
            raise refused(decision, server)
        plan = await plane.operator.plan(action, server, profile)
        if getattr(args, "live_only", False) and not plan.live:
            raise RefusedError(
                f"{plan.profile.name} cannot be applied to {server} without a restart",
                where=server,
                unchanged="nothing was changed",
                next_step="leave out --live-only to restart it",
            )
        if not plan.refusals:
            confirm(plan, args, context)
        told = plane.operator.execute(plan, drain_s=getattr(args, "drain", 0.0))
        outcome: Outcome | None = None
        context.out.must_not_fail = True
        async with aclosing(told) as items:
            async for item in items:
                if isinstance(item, Outcome):
                    outcome = item
                    context.left = f"{outcome.summary}; dflash-console status {server} shows its state"
                    continue
                if item.name in CHANGING and item.state != "skipped":
                    context.began(state_left(plan, item))
                elif context.acting:
                    context.left = state_left(plan, item)
                show_step(item, context)
    assert outcome is not None
    context.out.must_not_fail = False
    return show_outcome(plan, outcome, context)


def refused(decision: Decision, server: str) -> RefusedError:
    """A decision against an action as an error; most reasons name the server themselves."""
    where = "" if decision.reason.startswith(f"{server} ") else server
    return RefusedError(decision.reason, where=where, unchanged="nothing was changed")


def confirm(plan: Plan, args: argparse.Namespace, context: Context) -> None:
    """Asks for what needs a yes. Raises RefusedError when there is none."""
    dangers = [warning.text for warning in plan.warnings if warning.dangerous]
    for warning in plan.warnings:
        context.out.note(f"{'dangerous' if warning.dangerous else 'warning'}: {warning.text}")
    if dangers and not args.yes_dangerous:
        ask(
            f"{plan.action} {plan.server} with {len(dangers)} dangerous setting(s)?",
            "--yes-dangerous",
            plan,
            context,
        )
    elif plan.action in ASKED and not args.yes:
        who = f", running {plan.from_profile}" if plan.from_profile else ""
        ask(f"{plan.action} {plan.server} on {plan.host}{who}?", "--yes", plan, context)


def ask(question: str, flag: str, plan: Plan, context: Context) -> None:
    """A question at a terminal; elsewhere the flag is needed."""
    if not sys.stdin.isatty():
        raise RefusedError(
            f"not confirmed: {question}",
            unchanged="nothing was changed",
            next_step=f"repeat it with {flag}",
        )
    context.out.note(f"{question} Type yes:")
    if not typed_yes():
        raise RefusedError("not confirmed", where=plan.server, unchanged="nothing was changed")


def state_left(plan: Plan, step: Step) -> str:
    """What an interruption right after this step leaves behind."""
    name = plan.server
    if step.name == "stop":
        if step.state == "done":
            return f"{name} was stopped and nothing was launched; dflash-console start {name}"
        return f"the stop of {name} goes on at the host; dflash-console status {name} shows how it ends"
    if step.name == "launch" and step.state == "running":
        return f"a launch of {name} was under way; dflash-console status {name} shows whether it runs"
    if step.name == "drain":
        return f"{name} still runs as before"
    return f"{name} was launched and goes on starting; dflash-console status {name}, or stop {name}"


def show_step(step: Step, context: Context) -> None:
    """One line a step; with ``--json`` one JSON line."""
    if context.out.as_json:
        context.out.event({"event": "step", **asdict(step)})
        return
    mark = {"running": "…", "done": "✓", "failed": "✖", "skipped": "–"}[step.state]
    text = f"  {step.text}" if step.text and step.text != step.name else ""
    context.out.note(f"{mark} {step.name}{text}")


def show_outcome(plan: Plan, outcome: Outcome, context: Context) -> int:
    """The end of an action and its exit code."""
    if context.out.as_json:
        context.out.event(
            {"event": "outcome", "server": plan.server, "action": plan.action, **asdict(outcome)}
        )
        return outcome.exit_code
    if outcome.granted:
        context.out.table(
            ["setting", "asked", "granted", ""],
            [
                [
                    row.name,
                    row.asked,
                    "not told" if row.granted is None else row.granted,
                    "✓" if row.ok else "✖",
                ]
                for row in outcome.granted
            ],
        )
    if outcome.ok:
        context.out.line(outcome.summary)
    else:
        context.out.note(f"dflash-console: {outcome.summary}")
        for line in outcome.details:
            context.out.note(f"  {line}")
    return outcome.exit_code
