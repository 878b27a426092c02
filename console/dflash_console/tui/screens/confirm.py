"""Questions before something is done. The safe answer is the one that the cursor is on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from dflash_backend.control.contract import Plan
from dflash_backend.core.samples import ServerSnapshot
from dflash_console.tui.jobs import Job
from dflash_console.tui.planview import facts, headline, plan_lines
from dflash_console.tui.safetext import Pieces, clean
from dflash_console.tui.screens.base import paragraphs
from dflash_console.tui.services import BenchState

_AROUND = {".dialog": 4, ".buttons": 2, "#typed": 2}
"""Rows beside the text: border and padding, answers, the line to type on."""


class QuestionScreen(ModalScreen[bool]):
    """A question with two answers; escape is the safe one."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(False)", "cancel", show=False),
        Binding("left,up", "app.focus_previous", "previous", show=False),
        Binding("right,down", "app.focus_next", "next", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
    ]
    AUTO_FOCUS = "#no"

    def __init__(self, title: str, yes: str, *, no: str = "cancel", danger: bool = False) -> None:
        super().__init__()
        self._title_text = title
        self._yes, self._no, self._danger = yes, no, danger

    def lines(self) -> Sequence[Pieces]:
        """The text of the question."""
        raise NotImplementedError

    def extra(self) -> Iterable[Widget]:
        """Widgets between the text and the answers."""
        return ()

    def compose(self) -> ComposeResult:
        """Text and answers."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Content(clean(self._title_text, 120))
            with VerticalScroll(id="text", can_focus=False):
                yield Static(paragraphs(self.lines()), markup=False)
            yield from self.extra()
            with Horizontal(classes="buttons"):
                yield Button(Content(self._no), id="no", compact=True)
                yield Button(
                    Content(clean(self._yes, 40)),
                    id="yes",
                    compact=True,
                    classes="danger" if self._danger else "",
                )

    def on_resize(self, event: events.Resize) -> None:
        """A long text scrolls, so that the answers are always on the screen."""
        around = sum(_AROUND[widget] for widget in _AROUND if self.query(widget))
        text = self.query_one("#text", VerticalScroll)
        text.styles.max_height = max(2, event.size.height * 92 // 100 - around)
        self.call_after_refresh(self._tell_more)

    def _tell_more(self) -> None:
        more = self.query_one("#text", VerticalScroll).max_scroll_y > 0
        self.query_one(".dialog").border_subtitle = "pgdn: more" if more else None

    def action_page(self, by: int) -> None:
        """Turns the text."""
        text = self.query_one("#text", VerticalScroll)
        text.scroll_relative(y=by * max(1, text.size.height - 1), animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The answer."""
        self.action_answer(event.button.id == "yes")

    def action_answer(self, sure: bool) -> None:
        """Ends the question."""
        self.dismiss(sure)


class ConfirmScreen(QuestionScreen):
    """Asks before a plan is run: names host, run, requests in flight, and what changes."""

    def __init__(self, plan: Plan, server: ServerSnapshot | None) -> None:
        name = str(plan.action)
        super().__init__(headline(plan), name, danger=name in ("stop", "restart"))
        self._plan = plan
        self._server = server

    def lines(self) -> Sequence[Pieces]:
        """Facts, then the plan without its command."""
        return [*facts(self._plan, self._server), (), *plan_lines(self._plan, 66, command=False)]


class DangerScreen(QuestionScreen):
    """A confirmation of its own for dangerous warnings: the server's name is typed."""

    AUTO_FOCUS = "#typed"

    def __init__(self, plan: Plan, dangers: Sequence[str]) -> None:
        super().__init__(f"danger: {headline(plan)}", "go on anyway", danger=True)
        self._plan = plan
        self._dangers = dangers

    def lines(self) -> Sequence[Pieces]:
        """Each danger."""
        ask: Pieces = (("Type ", "text"), (self._plan.server, "strong"), (" to go on.", "text"))
        return [*((("✖ ", "bad"), (text, "text")) for text in self._dangers), (), ask]

    def extra(self) -> Iterable[Widget]:
        """The line to type on."""
        yield Input(id="typed", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        """Nothing is typed yet."""
        self.query_one("#yes", Button).disabled = True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Only the exact name will do."""
        event.stop()
        self.query_one("#yes", Button).disabled = event.value.strip() != self._plan.server

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes on when the name is right."""
        event.stop()
        if event.value.strip() == self._plan.server:
            self.action_answer(True)


class QuitScreen(QuestionScreen):
    """Asks before leaving while something is in progress; says what would be left."""

    def __init__(self, jobs: Sequence[Job], bench: BenchState | None) -> None:
        super().__init__("leave now?", "leave", no="stay", danger=True)
        self._jobs = jobs
        self._bench = bench

    def lines(self) -> Sequence[Pieces]:
        """What is in progress, and what becomes of it."""
        lines: list[Pieces] = []
        for job in self._jobs:
            name = f"{job.words()} on {job.plan.server}"
            lines.append((("◐ ", "accent"), (name, "strong"), (f"   at: {job.where()}", "dim")))
        if self._jobs:
            lines += [
                (),
                (
                    (
                        "What already runs on a host goes on by itself.",
                        "text",
                    ),
                ),
                (("Steps that were not begun are not done, and nothing is undone.", "text"),),
            ]
        if self._bench is not None:
            words = f"benchmark {self._bench.job} on {self._bench.server}"
            lines += [
                (("◐ ", "accent"), (words, "strong")),
                (("It stops; finished cells are kept.", "text"),),
            ]
        return lines


class AskScreen(QuestionScreen):
    """A plain question with ready lines."""

    def __init__(self, title: str, lines: Sequence[Pieces], yes: str, *, danger: bool = False) -> None:
        super().__init__(title, yes, danger=danger)
        self._lines = lines

    def lines(self) -> Sequence[Pieces]:
        """As given."""
        return self._lines
