"""An action in progress: its steps, and at the end what was asked against what was granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.control.contract import Step
from dflash_backend.core.samples import ServerSnapshot, Snapshot
from dflash_console.tui.actions import PROGRESS
from dflash_console.tui.deciders import Context
from dflash_console.tui.figures import bar_pieces, clock_span
from dflash_console.tui.jobs import Job
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.planview import headline
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen, paragraphs
from dflash_console.tui.widgets.grid import Column, Grid, Row

_SIGNS = {
    "running": ("◐", "accent"),
    "done": ("✓", "good"),
    "failed": ("✖", "bad"),
    "skipped": ("–", "dim"),
}
_BAR = 12


class ProgressScreen(ConsoleScreen):
    """Can be left and opened again: the action belongs to the console, not to this screen."""

    WHERE = PROGRESS
    CSS_PATH = "progress.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(PROGRESS)]
    AUTO_FOCUS = "#steps"

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server_name = server
        self._outcome_shown: object = None

    @property
    def job(self) -> Job | None:
        """The action that is shown."""
        return self.console_app.jobs.of(self.server_name)

    def compose_body(self) -> Iterable[Widget]:
        """Steps, outcome, granted settings."""
        with Vertical(id="steps-panel", classes="panel"):
            yield Grid(
                (
                    Column(key="sign", title="", width=1),
                    Column(key="name", title="step", width=14),
                    Column(key="state", title="state", width=8),
                    Column(key="text", title="progress", width=10, most=400),
                ),
                id="steps",
                empty="not begun yet",
            )
        with Vertical(id="outcome-panel", classes="panel"):
            yield Static(id="outcome", markup=False)
            yield Grid(
                (
                    Column(key="name", title="setting", width=20, most=40),
                    Column(key="asked", title="asked", width=14, most=40),
                    Column(key="granted", title="granted", width=14, most=40),
                ),
                id="granted",
                empty="nothing was read back",
            )

    def on_ready(self) -> None:
        """First paint."""
        self.query_one("#outcome-panel").display = False

    def title_text(self) -> str:
        """The action."""
        return headline(self.job.plan) if self.job else self.server_name

    def summary_text(self, snapshot: Snapshot) -> str:
        """How long it has taken, and how long it should."""
        job = self.job
        if job is None:
            return ""
        elapsed = (job.finished_at or self.services.clock()) - job.started_at
        words = clock_span(elapsed)
        if job.running and job.plan.expected_s is not None:
            words += f" of about {clock_span(job.plan.expected_s)}"
        return words

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Steps and, at the end, the outcome."""
        job = self.job
        if job is None:
            return
        self.query_one("#steps", Grid).set_rows([_row(step) for step in job.steps.values()])
        panel = self.query_one("#outcome-panel")
        title = "steps   in progress: leaving this screen does not stop it" if job.running else "steps"
        self.console_app.set_title(self.query_one("#steps-panel"), title)
        if job.outcome is None or job.outcome is self._outcome_shown:
            panel.display = job.outcome is not None
            return
        outcome = self._outcome_shown = job.outcome
        sign: Pieces = (("✓ ", "good"),) if outcome.ok else (("✖ ", "bad"),)
        lines: list[Pieces] = [(*sign, (outcome.summary, "strong"))]
        lines += [((detail, "dim"),) for detail in outcome.details]
        if outcome.exit_code == 6:
            lines.append((("What was there before could not be restored: look at the server now.", "bad"),))
        self.query_one("#outcome", Static).update(paragraphs(lines))
        grid = self.query_one("#granted", Grid)
        grid.display = bool(outcome.granted)
        grid.set_rows(
            [
                Row(
                    item.name,
                    {
                        "name": ((item.name, "text"),),
                        "asked": ((item.asked, "text"),),
                        "granted": (
                            ("✓ " if item.ok else "✖ ", "good" if item.ok else "bad"),
                            (item.granted or "–", "text" if item.ok else "bad"),
                        ),
                    },
                )
                for item in outcome.granted
            ]
        )
        self.console_app.set_title(panel, "done" if outcome.ok else f"failed   exit code {outcome.exit_code}")
        panel.display = True

    def target_server(self) -> ServerSnapshot | None:
        """The server that is worked on; may not be in the inventory any more."""
        return self.console_app.snapshot.server(self.server_name)

    def do_copy(self, context: Context) -> None:
        """The command of the plan."""
        if self.job is not None:
            self.console_app.copy(self.job.plan.command, "the command")

    def do_cancel(self, context: Context) -> None:
        """Asks, then cancels."""
        job = self.job
        if job is None or not job.running:
            return
        from dflash_console.tui.screens.confirm import AskScreen

        lines: list[Pieces] = [
            (("in progress: ", "dim"), (job.where(), "text")),
            (),
            (("The step that runs now is given up. What it left is said here afterwards.", "text"),),
        ]

        def answer(sure: bool | None) -> None:
            if sure:
                self.console_app.jobs.cancel(job)

        self.app.push_screen(
            AskScreen(f"cancel {headline(job.plan)}?", lines, "cancel it", danger=True), answer
        )


def _row(step: Step) -> Row:
    sign, role = _SIGNS[step.state]
    bar: Pieces = ()
    if step.progress is not None and step.state == "running":
        bar = (*bar_pieces(step.progress, _BAR), (f" {step.progress * 100:3.0f}%  ", "text"))
    return Row(
        step.name,
        {
            "sign": ((sign, role),),
            "name": ((step.name, "strong" if step.state == "running" else "text"),),
            "state": ((step.state, role),),
            "text": (*bar, ("" if step.text == step.name else step.text, "dim")),
        },
    )
