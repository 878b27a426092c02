"""Choice of a profile: every change and the exact command are seen before anything happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.control.contract import Action, Plan
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_console.tui.actions import PICKER
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import bindings_in
from dflash_console.tui.planview import headline, plan_lines
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.screens.base import ConsoleScreen, paragraphs
from dflash_console.tui.widgets.grid import Column, Grid, Row

_WAIT_S = 0.12
"""Moving quickly through the list does not ask for a plan at every step."""


class PickerScreen(ConsoleScreen):
    """Profiles on the left, what applying the selected one would do on the right."""

    WHERE = PICKER
    CSS_PATH = "picker.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_in(PICKER)]
    AUTO_FOCUS = "#profiles"

    def __init__(self, server: str, profile: str | None = None) -> None:
        super().__init__()
        self.server_name = server
        self._wanted = profile
        self._plan: Plan | None = None
        self._shown: str | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan that is shown, None while there is none."""
        return self._plan

    def compose_body(self) -> Iterable[Widget]:
        """List and preview."""
        with Horizontal():
            with Vertical(id="profiles-panel", classes="panel"):
                yield Grid(
                    (
                        Column(key="mark", title="", width=1),
                        Column(key="name", title="profile", width=14, most=60),
                    ),
                    id="profiles",
                    header=False,
                    empty="no profiles",
                )
            with VerticalScroll(id="plan-panel", classes="panel", can_focus=True):
                yield Static(id="plan", markup=False)

    def on_ready(self) -> None:
        """Selects the wanted profile, else the one in use."""
        self.query_one("#profiles-panel").border_title = "profiles"
        self.repaint()
        server = self.target_server()
        grid = self.query_one("#profiles", Grid)
        wanted = self._wanted or (server.profile if server else None)
        if self._wanted and not grid.select(self._wanted):
            self.console_app.tell(f"no profile is called {self._wanted}", "warning")
        elif wanted:
            grid.select(wanted)
        self._preview()

    def title_text(self) -> str:
        """What is decided here."""
        return f"profile for {self.server_name}"

    def summary_text(self, snapshot: Snapshot) -> str:
        """What is in use."""
        server = snapshot.server(self.server_name)
        return f"now {server.profile or 'none'} · {server.state}" if server else ""

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """The list; the plan is painted when it comes."""
        server = snapshot.server(self.server_name)
        current = server.profile if server else None
        words = self.filter_text.lower().split()
        rows = []
        for summary in self.services.profiles.names():
            hay = f"{summary.name} {summary.description}".lower()
            if not all(word in hay for word in words):
                continue
            mark = (
                ("✖", "bad")
                if summary.problem
                else ("●", "good")
                if summary.name == current
                else (" ", "dim")
            )
            role = "dim" if summary.problem else "strong" if summary.name == current else "text"
            rows.append(Row(summary.name, {"mark": (mark,), "name": ((summary.name, role),)}))
        grid = self.query_one("#profiles", Grid)
        grid.set_empty("no profile matches the filter" if words else "no profiles")
        grid.set_rows(rows)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Another profile, another plan."""
        self._preview()

    async def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """A click on the selected profile asks to apply it."""
        await self.action_act("apply")

    def _preview(self) -> None:
        name = self.query_one("#profiles", Grid).key
        if name == self._shown:
            return
        self._shown, self._plan = name, None
        if name is None:
            self._show("plan", [])
            return
        summary = next((s for s in self.services.profiles.names() if s.name == name), None)
        if summary is not None and summary.problem:
            self._show(
                f"{name} cannot be used",
                [
                    (("✖ ", "bad"), (summary.problem, "text")),
                    ((f"file: {summary.origin}", "dim"),),
                    (("next: correct the file, then open this screen again", "dim"),),
                ],
            )
            return
        self.console_app.background(self, lambda: self._ask(name), "plan", group="plan", exclusive=True)

    async def _ask(self, name: str) -> None:
        await asyncio.sleep(_WAIT_S)
        self._show(f"plan for {name}", [(("asking the host what this would change …", "dim"),)])
        try:
            plan = await self.services.operator.plan(Action.APPLY, self.server_name, name)
        except ConsoleError as error:
            head, *rest = error.lines()
            self._show("no plan", [(("✖ ", "bad"), (head, "text")), *(((text, "dim"),) for text in rest)])
            return
        if name != self._shown:
            return
        self._plan = plan
        width = max(30, self.query_one("#plan-panel").content_size.width - 1)
        self._show(headline(plan), plan_lines(plan, width))
        self.paint_keys()

    def _show(self, title: str, lines: list[Pieces]) -> None:
        panel = self.query_one("#plan-panel", VerticalScroll)
        self.console_app.set_title(panel, title)
        self.query_one("#plan", Static).update(paragraphs(lines))
        panel.scroll_home(animate=False)

    def target_server(self) -> ServerSnapshot | None:
        """The server that the profile is for."""
        return self.console_app.snapshot.server(self.server_name)

    def target_host(self) -> LinkStatus | None:
        """Its host."""
        server = self.target_server()
        return self.console_app.host(server.host) if server else None

    def do_apply(self, context: Context) -> None:
        """Asks, then applies."""
        if self._plan is None:
            self.console_app.tell("there is no plan to apply yet", "warning")
            return
        app, plan = self.console_app, self._plan
        app.background(app, lambda: app.confirm_and_run(plan), "apply", group="confirm", exclusive=True)

    def do_copy(self, context: Context) -> None:
        """The exact command."""
        if self._plan is not None:
            self.console_app.copy(self._plan.command, "the command")
        else:
            self.console_app.tell("there is no command to copy yet", "warning")
