"""A plan as text: what changes, what it costs, what is dangerous, and the exact command. Pure."""

from __future__ import annotations

from dflash_backend.control.contract import Plan
from dflash_backend.core.samples import ServerSnapshot
from dflash_console.tui.figures import MISSING, duration
from dflash_console.tui.safetext import Pieces, clean, fit, width_of

_NAME_MOST = 30
_VALUE_MOST = 18
_ENDS = ("stop", "adopt")
"""Actions that lead to no profile: nothing is compared, and nobody asks how long they take."""


def headline(plan: Plan) -> str:
    """The action in one line: ``apply kimi-ddtree16 on kimi-a (gpu1)``."""
    name = str(plan.action)
    what = f"{name} {plan.profile.name}" if name in ("apply", "start", "restart") else name
    return f"{what} on {plan.server} ({plan.host})"


def cost(plan: Plan) -> str:
    """How it happens and how long it takes, as far as that is known."""
    how = "live, without a restart" if plan.live else "needs a restart"
    if str(plan.action) in ("stop", "adopt", "start"):
        how = {
            "stop": "ends the server",
            "adopt": "changes nothing on the host",
            "start": "starts the server",
        }[str(plan.action)]
    if plan.expected_s is None and str(plan.action) in _ENDS:
        return how
    if plan.expected_s is None:
        return f"{how} · how long is not known yet"
    return f"{how} · about {duration(plan.expected_s)}"


def change_lines(plan: Plan, width: int) -> list[Pieces]:
    """The changes as an aligned table; at least one line."""
    if not plan.changes:
        return [(("no setting changes", "dim"),)]
    if plan.from_run is None and all(change.before is None for change in plan.changes):
        return [((f"nothing runs now: all {len(plan.changes)} settings are new, see the command", "dim"),)]
    names = [clean(change.name) for change in plan.changes]
    name_width = min(_NAME_MOST, max(map(width_of, names)), max(8, width // 2 - 4))
    room = max(6, (width - name_width - 14) // 2)
    values = [clean(v or MISSING) for change in plan.changes for v in (change.before, change.after)]
    value_width = min(_VALUE_MOST, room, max(map(width_of, values)))
    lines: list[Pieces] = []
    for change, name in zip(plan.changes, names, strict=True):
        before, after = clean(change.before or MISSING), clean(change.after or MISSING)
        lines.append(
            (
                (fit(name, name_width) + "  ", "text"),
                (fit(before, value_width), "dim"),
                (" → ", "faint"),
                (fit(after, value_width), "strong"),
                (f"  {change.how}", "good" if change.how == "live" else "dim"),
            )
        )
    return lines


def plan_lines(plan: Plan, width: int, *, command: bool = True) -> list[Pieces]:
    """The whole plan, most important first: refusals, warnings, changes, memory, command."""
    ends = str(plan.action) in _ENDS
    lines: list[Pieces] = [((cost(plan), "text"),)]
    if plan.from_profile and not ends:
        lines.append(
            (("from ", "dim"), (plan.from_profile, "dim"), (" to ", "dim"), (plan.profile.name, "text"))
        )
    if plan.profile.description and not ends:
        lines.append(((plan.profile.description, "dim"),))
    for refusal in plan.refusals:
        lines += [(), (("✖ cannot run: ", "bad"), (refusal, "bad"))]
    if plan.warnings:
        lines.append(())
    for warning in plan.warnings:
        sign, role = ("✖ danger: ", "bad") if warning.dangerous else ("⚑ warning: ", "warn")
        lines.append(((sign, role), (warning.text, "text")))
    lines += [((note, "dim"),) for note in plan.notes]
    if not ends:
        lines += [(), (("changes", "accent"),), *change_lines(plan, width)]
    if plan.memory_forecast:
        lines += [(), (("memory", "accent"),), *(((text, "text"),) for text in plan.memory_forecast)]
    if command and plan.command:
        lines += [(), (("command", "accent"), ("   y copies", "dim")), ((plan.command, "text"),)]
    return lines


def facts(plan: Plan, server: ServerSnapshot | None) -> list[Pieces]:
    """What is there now and would be touched: for the question before an action."""
    if server is None:
        return []
    lines: list[Pieces] = [
        (("now      ", "dim"), (f"{server.state}, profile {server.profile or 'none'}", "text"))
    ]
    if server.run is not None:
        run = server.run
        by = f", started by {run.started_by}" if run.started_by else ""
        pid = f", pid {run.pid}" if run.pid is not None else ""
        lines.append((("run      ", "dim"), (f"{run.run_id}{pid}{by}", "text")))
    figures = server.figures
    if figures is not None and figures.running is not None:
        queued = figures.queued or 0
        busy = figures.running + queued
        words = f"{figures.running} running, {queued} queued"
        lines.append((("requests ", "dim"), (words, "warn" if busy else "text")))
    return lines
