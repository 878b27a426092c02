"""The application: takes snapshots to the screen in front, owns navigation and the error policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rich.text import Text
from textual.app import App
from textual.command import Provider
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from dflash_backend.control.contract import Action, Plan
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, Snapshot
from dflash_console.tui import faults
from dflash_console.tui.actions import PICKER
from dflash_console.tui.deciders import Context, runs_now
from dflash_console.tui.jobs import BenchTask, Job, Jobs
from dflash_console.tui.keys import check_keymap
from dflash_console.tui.look import ANSI_THEME, ANSI_VARIABLES, DARK, DEFAULT_VARIABLES, LIGHT, THEMES
from dflash_console.tui.safetext import clean
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.services import Services
from dflash_console.tui.terminal import TerminalFilter

if TYPE_CHECKING:
    from textual.timer import Timer

Severity = Literal["information", "warning", "error"]

_PAINT_S = 0.5
"""Screens are painted at most this often, however many hosts report."""


def _palette() -> type[Provider]:
    from dflash_console.tui.palette import ConsoleCommands

    return ConsoleCommands


class DflashApp(App[int]):
    """The console. Everything it knows comes through ``services``."""

    CSS_PATH = "app.tcss"
    TITLE = "dflash-console"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, services: Services) -> None:
        super().__init__()
        # Every step of an animation is a repaint that has to go through SSH.
        self.animation_level = "none"
        self.services = services
        self.snapshot: Snapshot = services.fleet.snapshot()
        self.jobs = Jobs(self, services, self._job_changed)
        self.bench = BenchTask(self, services, self.repaint_front)
        self._log_path: Path | None = None
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
        self._log_path = faults.log_to_file(self.services.log_dir)
        self.run_worker(self._watch(), name="fleet", group="fleet", exit_on_error=False)
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

    # Telling

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Severity = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """A message; never read as markup, whoever sends it."""
        safe = "\n".join(clean(line, 400) for line in message.splitlines()[:8])
        super().notify(safe, title=clean(title, 80), severity=severity, timeout=timeout, markup=False)

    def tell(self, text: str, severity: Severity = "information") -> None:
        """A short message."""
        self.notify(text, severity=severity, timeout=4 if severity == "information" else 8)

    def show_error(self, error: ConsoleError) -> None:
        """An error with what stayed unchanged and what to do next."""
        self.notify("\n".join(error.lines()), severity="error", timeout=15)

    def copy(self, text: str, what: str) -> None:
        """Copies text through the terminal (OSC 52) and says so."""
        safe = "\n".join(clean(line) for line in text.splitlines())
        self.copy_to_clipboard(safe)
        self.tell(f"copied {what} through the terminal (OSC 52); where that is blocked: S saves logs")

    def set_title(self, panel: Widget, text: str) -> None:
        """The title of a panel, as plain text, painted only when it is another one."""
        title = Content(clean(text, 200))
        if getattr(panel, "_border_title", None) != title:
            panel.border_title = title

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
        self.run_worker(
            self._plan_and_confirm(server, action), group="plan", exclusive=True, exit_on_error=False
        )

    async def _plan_and_confirm(self, server: str, action: Action) -> None:
        try:
            plan = await self.services.operator.plan(action, server)
        except ConsoleError as error:
            self.show_error(error)
            return
        await self.confirm_and_run(plan)

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

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A background task that failed is a message, not the end of the console."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            error = event.worker.error
            if isinstance(error, ConsoleError):
                self.show_error(error)
                return
            faults.log_error(error)
            self.notify(
                f"{event.worker.name or 'a background task'} failed: {type(error).__name__}\n"
                f"details: {self._log_path or 'no log could be written'}",
                severity="error",
                timeout=15,
            )

    def _handle_exception(self, error: Exception) -> None:
        """Ends the console with a plain message; the traceback goes to the log, without locals."""
        if self._exit:
            faults.log_error(error)  # Leaving already: widgets that are being removed may stumble.
            return
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._return_code = 5
        logging.getLogger(faults.LOGGER).handlers or faults.log_to_file(self.services.log_dir)
        faults.log_error(error)
        self._exit_renderables.append(Text(faults.last_words(error, self._log_path)))
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        """The first error is the cause; what followed is in the log."""
        for renderable in self._exit_renderables[:1]:
            self.error_console.print(renderable, soft_wrap=True)
        self._exit_renderables.clear()


def run(services: Services) -> int:
    """Runs the console until the user leaves; returns the exit code."""
    app = DflashApp(services)
    result = app.run()
    return app.return_code or (result if isinstance(result, int) else 0)
