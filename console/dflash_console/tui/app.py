"""The application: takes snapshots to the screen in front, owns navigation and the error policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.command import Provider
from textual.screen import Screen

from dflash_backend.control.contract import Action, Plan
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, Snapshot
from dflash_console.tui import faults
from dflash_console.tui.actions import PICKER
from dflash_console.tui.deciders import Context, runs_now
from dflash_console.tui.jobs import BenchTask, Job, Jobs
from dflash_console.tui.keys import check_keymap
from dflash_console.tui.look import ANSI_THEME, ANSI_VARIABLES, DARK, DEFAULT_VARIABLES, LIGHT, THEMES
from dflash_console.tui.measuring import Measuring
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.services import Services
from dflash_console.tui.shell import Severity, Shell
from dflash_console.tui.terminal import TerminalFilter

if TYPE_CHECKING:
    from textual.timer import Timer

_PAINT_S = 0.5
"""Screens are painted at most this often, however many hosts report."""


def _palette() -> type[Provider]:
    from dflash_console.tui.palette import ConsoleCommands

    return ConsoleCommands


class DflashApp(Shell):
    """The console. Everything it knows comes through ``services``."""

    CSS_PATH = "app.tcss"
    TITLE = "dflash-console"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, services: Services) -> None:
        super().__init__(log_dir=services.log_dir)
        self.services = services
        self.snapshot: Snapshot = services.fleet.snapshot()
        self.jobs = Jobs(self, services, self._job_changed)
        self.bench = BenchTask(self, services, self.repaint_front)
        self.measuring = Measuring(self, services, self.repaint_front)
        self._paint_timer: Timer | None = None
        self._painted = False
        for theme in THEMES:
            self.register_theme(theme)
        names = {"dark": DARK.name, "light": LIGHT.name, "ansi": ANSI_THEME}
        wanted = names.get(services.theme or "dark", services.theme or DARK.name)
        self._theme_problem = "" if wanted in self.available_themes else f"no theme is called {wanted!r}"
        self.theme = DARK.name if self._theme_problem else wanted
        # The last thing before the terminal: see terminal.py.
        self._filters.append(TerminalFilter(ascii_only=services.ascii))
        self.set_keymap(dict(services.keymap))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our colours, for themes that do not define them."""
        return dict(ANSI_VARIABLES if self.theme.startswith("ansi") else DEFAULT_VARIABLES)

    def get_default_screen(self) -> Screen[Any]:
        """The fleet is what is seen first."""
        from dflash_console.tui.screens.fleet import FleetScreen

        return FleetScreen()

    def on_mount(self) -> None:
        """Begins watching."""
        self.open_log()
        self.background(self, self._watch, "fleet", group="fleet")
        self.set_interval(1.0, self._tick)
        for problem in check_keymap(self.services.keymap):
            self.tell(problem, "warning")
        if self._theme_problem:
            self.tell(f"{self._theme_problem}: dark is used", "warning")

    # Snapshots

    async def _watch(self) -> None:
        """Takes snapshots as they come. A failure is told, and watching goes on."""
        while True:
            try:
                await self.services.fleet.start()
                self._take(self.services.fleet.snapshot())
                async for snapshot in self.services.fleet.changes():
                    self._take(snapshot)
                return  # A replay is over: what it showed last stays.
            except ConsoleError as error:
                self.show_error(error)
            except Exception as error:
                faults.log_error(error)
                self.tell(f"watching the fleet failed ({type(error).__name__}) and begins again", "error")
            await asyncio.sleep(5.0)

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if self._paint_timer is None:
            self.repaint_front()
            self._paint_timer = self.set_timer(_PAINT_S, self._paint_again)
            self._painted = True
        else:
            self._painted = False

    def _paint_again(self) -> None:
        self._paint_timer = None
        if not self._painted:
            self._take(self.snapshot)

    def _tick(self) -> None:
        """Ages grow without news."""
        if self._paint_timer is None:
            self.repaint_front()

    def repaint_front(self) -> None:
        """Paints the screen in front; the others paint when they come back."""
        screen = self.screen if self.screen_stack else None
        if isinstance(screen, ConsoleScreen) and screen.is_running:
            screen.repaint()

    def host(self, name: str) -> LinkStatus | None:
        """The connection of a host as last seen."""
        return next((h for h in self.snapshot.hosts if h.host == name), None)

    async def _on_key(self, event: events.Key) -> None:
        """Keys that no widget took; letters for an open prompt are among them when one types quickly."""
        if isinstance(self.screen, ConsoleScreen) and self.screen.late_key(event):
            event.prevent_default()  # Else Textual goes on to the bindings.

    # Navigation

    def open_server(self, name: str) -> None:
        """The screen of one server."""
        from dflash_console.tui.screens.server import ServerScreen

        self.push_screen(ServerScreen(name))

    def open_hosts(self, host: str | None = None) -> None:
        """The screen of the hosts."""
        from dflash_console.tui.screens.hosts import HostsScreen

        self.push_screen(HostsScreen(host))

    def open_bench(self, server: str | None) -> None:
        """The screen of the benchmarks."""
        from dflash_console.tui.screens.bench import BenchScreen

        self.push_screen(BenchScreen(server))

    def open_logs(self, server: str) -> None:
        """The log of one server on the whole screen."""
        from dflash_console.tui.screens.log import LogScreen

        self.push_screen(LogScreen(server))

    def open_picker(self, server: str, profile: str | None = None) -> None:
        """The choice of a profile for one server."""
        from dflash_console.tui.screens.picker import PickerScreen

        self.push_screen(PickerScreen(server, profile))

    def open_progress(self, server: str) -> None:
        """The steps of an action; takes the place of the choice that led to it."""
        from dflash_console.tui.screens.progress import ProgressScreen

        if getattr(self.screen, "WHERE", "") == PICKER:
            self.switch_screen(ProgressScreen(server))
        else:
            self.push_screen(ProgressScreen(server))

    def command_names(self) -> list[str]:
        """What the command line knows, for completion."""
        from dflash_console.tui.commandline import WORDS

        servers = [s.name for s in self.snapshot.servers]
        return [*servers, *WORDS, *(f"log {name}" for name in servers)]

    def run_command(self, text: str) -> None:
        """Runs a line typed after ``:``."""
        from dflash_console.tui.commandline import run

        run(self, text)

    # Actions of the registry that mean the same everywhere

    def do_profile(self, context: Context) -> None:
        """Chooses a profile."""
        if context.server:
            self.open_picker(context.server.name)

    def do_pin(self, context: Context, number: int) -> None:
        """Shows what a pinned profile would change."""
        if context.server and number <= len(self.services.pinned):
            self.open_picker(context.server.name, self.services.pinned[number - 1])

    def do_audit(self, context: Context) -> None:
        """The window audit."""
        if context.server:
            from dflash_console.tui.screens.audit import AuditScreen

            self.push_screen(AuditScreen(context.server.name))

    def do_bench(self, context: Context) -> None:
        """The benchmarks."""
        self.open_bench(context.server.name if context.server else None)

    def do_logs(self, context: Context) -> None:
        """The log."""
        if context.server:
            self.open_logs(context.server.name)

    def do_hosts(self, context: Context) -> None:
        """The hosts."""
        self.open_hosts(context.server.host if context.server else None)

    def do_progress(self, context: Context) -> None:
        """The steps of the newest action."""
        if context.server and self.jobs.of(context.server.name):
            self.open_progress(context.server.name)
        elif context.server:
            self.tell(f"nothing was done to {context.server.name} since this console started")

    def do_start_stop(self, context: Context) -> None:
        """Starts or stops, after a confirmation."""
        if context.server:
            self._plan(context.server.name, Action.STOP if runs_now(context.server) else Action.START)

    def do_restart(self, context: Context) -> None:
        """Restarts, after a confirmation."""
        if context.server:
            self._plan(context.server.name, Action.RESTART)

    def do_adopt(self, context: Context) -> None:
        """Adopts, after a confirmation."""
        if context.server:
            self._plan(context.server.name, Action.ADOPT)

    def do_help(self, context: Context) -> None:
        """The keys of the screen in front."""
        from dflash_console.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(context))

    def do_palette(self, context: Context) -> None:
        """The command palette."""
        self.action_command_palette()

    async def do_quit(self, context: Context) -> None:
        """Leaves."""
        await self.action_quit()

    # Plans and actions

    def _plan(self, server: str, action: Action) -> None:
        async def ask() -> None:
            await self.confirm_and_run(await self.services.operator.plan(action, server))

        self.background(self, ask, f"{action} {server}", group="plan", exclusive=True)

    async def confirm_and_run(self, plan: Plan) -> bool:
        """Asks (again for each danger), then runs the plan. Must be awaited in a worker."""
        from dflash_console.tui.screens.confirm import ConfirmScreen, DangerScreen

        if plan.refusals:
            self.notify("\n".join(("refused", *plan.refusals)), severity="error", timeout=15)
            return False
        if not await self.push_screen_wait(ConfirmScreen(plan, self.snapshot.server(plan.server))):
            return False
        dangers = [warning.text for warning in plan.warnings if warning.dangerous]
        if dangers and not await self.push_screen_wait(DangerScreen(plan, dangers)):
            return False
        # Things may have changed while the question was on the screen.
        decision = self.services.operator.decide(plan.action, server=plan.server)
        busy = self.jobs.busy(plan.server)
        if busy or not decision.allowed:
            self.tell(f"not done: {decision.reason or busy + ' is in progress'}", "warning")
            return False
        self.jobs.start(plan)
        self.open_progress(plan.server)
        return True

    def _job_changed(self, job: Job) -> None:
        self.repaint_front()
        if job.outcome is not None and self.is_running and getattr(self.screen, "job", None) is not job:
            sign = "done" if job.outcome.ok else "failed"
            severity: Severity = "information" if job.outcome.ok else "error"
            text = f"{job.plan.server}: {job.words()} {sign}: {job.outcome.summary}"
            self.notify(text, severity=severity, timeout=12)

    # Leaving and failing

    async def action_quit(self) -> None:
        """Leaves; asks only while something is in progress, and says what would be left."""
        if not self.jobs.running() and not self.bench.running:
            self.exit(0)
            return
        from dflash_console.tui.screens.confirm import QuitScreen

        if isinstance(self.screen, QuitScreen):
            return

        def leave(sure: bool | None) -> None:
            if sure:
                self.exit(0)

        self.push_screen(
            QuitScreen(self.jobs.running(), self.bench.state if self.bench.running else None), leave
        )


def run(services: Services) -> int:
    """Runs the console until the user leaves; returns the exit code."""
    app = DflashApp(services)
    result = app.run()
    return app.return_code or (result if isinstance(result, int) else 0)
