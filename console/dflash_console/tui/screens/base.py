"""What all screens share: the frame, the keys, the filter line, and the way an action is asked for."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_console.tui.actions import BY_ID, actions_in
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import key_text, keys_of
from dflash_console.tui.look import ROLES
from dflash_console.tui.safetext import Pieces, clean
from dflash_console.tui.services import Services
from dflash_console.tui.widgets.bars import Hint, KeyBar, Line
from dflash_console.tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from dflash_console.tui.app import DflashApp

SMALLEST = (60, 15)


def content(pieces: Iterable[tuple[str, str]]) -> Content:
    """Pieces as Textual content: styled by role, never read as markup."""
    return Content.assemble(*((clean(text), ROLES[role]) for text, role in pieces))


def paragraphs(lines: Sequence[Pieces]) -> Content:
    """Several lines of pieces."""
    return Content("\n").join([content(line) for line in lines])


class ConsoleScreen(Screen[None]):
    """A screen with a header line, a body and a key bar.

    Screens render what they are given (``paint``) and own no truth. ``filter_text`` is what was typed
    after ``/``.
    """

    WHERE: ClassVar[str] = ""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual's own kind of attribute)
        (0, "-tiny-wide"),
        (SMALLEST[0], "-narrow"),
        (100, "-normal"),
        (160, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny-high"),
        (SMALLEST[1], "-short"),
        (28, "-tall"),
        (40, "-high"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.filter_text = ""
        self._ready = False

    def on_mount(self) -> None:
        """All widgets are there now: shows what is true."""
        self._ready = True
        self.on_ready()
        self.repaint()

    def on_ready(self) -> None:
        """What a screen does once, when its widgets are there."""

    @property
    def console_app(self) -> DflashApp:
        """The app, with its own type."""
        return cast("DflashApp", self.app)

    @property
    def services(self) -> Services:
        """The bundle that the app was built from."""
        return self.console_app.services

    def compose(self) -> ComposeResult:
        """Header, body, keys."""
        yield Line(id="top")
        yield from self.compose_body()
        yield KeyBar(id="keys")
        yield Prompt(id="prompt")
        yield Static(
            f"dflash-console needs at least {SMALLEST[0]}x{SMALLEST[1]} cells. Make the window larger.",
            id="too-small",
            markup=False,
        )

    def compose_body(self) -> Iterable[Widget]:
        """The widgets between header and keys."""
        raise NotImplementedError

    # What is on the screen

    def title_text(self) -> str:
        """The name in the header."""
        return self.WHERE

    def summary_text(self, snapshot: Snapshot) -> str:
        """The words beside the name."""
        return ""

    def paint(self, snapshot: Snapshot, now: float) -> None:
        """Shows a snapshot; called with every new one and once a second for the ages."""

    def repaint(self) -> None:
        """Shows the newest snapshot."""
        if not self._ready or not self.is_current:
            return  # Not composed yet, covered by another screen, or on its way out.
        snapshot, now = self.console_app.snapshot, self.services.clock()
        with self.app.batch_update():
            self.paint(snapshot, now)
            self._paint_frame(snapshot, now)

    def _paint_frame(self, snapshot: Snapshot, now: float) -> None:
        services = self.services
        mode = ("read-only", "warn") if services.read_only else ("read-write", "dim")
        roomy = services.read_only or not self.has_class("-narrow")
        right: Pieces = (
            *(((f"  {services.label}", "second"),) if services.label else ()),
            *((("  ", "dim"), mode) if roomy else ()),
            (time.strftime("   %H:%M:%S", time.localtime(now)), "dim"),
        )
        summary = self.summary_text(snapshot)
        left: Pieces = (
            ("dflash-console", "accent"),
            ("   ", "dim"),
            (self.title_text(), "strong"),
            (f"   {summary}" if summary else "", "dim"),
        )
        self.query_one("#top", Line).show(left, right)
        self.paint_keys()

    def paint_keys(self) -> None:
        """Shows which keys work now."""
        context = self.context()
        keymap = self.services.keymap
        hints = [
            Hint(
                spec.id,
                key_text(keys_of(spec, keymap)),
                spec.title_in(context),
                spec.decide(context).allowed,
            )
            for spec in sorted(actions_in(self.WHERE), key=lambda s: s.footer)
            if spec.footer
        ]
        if "pin-1" in {s.id for s in actions_in(self.WHERE)} and self.services.pinned:
            last = min(9, len(self.services.pinned))
            at = next((i for i, h in enumerate(hints) if h.action == "start-stop"), len(hints) - 1) + 1
            hints.insert(
                at, Hint("pin-1", f"1-{last}" if last > 1 else "1", "pinned", context.server is not None)
            )
        self.query_one("#keys", KeyBar).show(hints)

    # What actions work on

    def target_server(self) -> ServerSnapshot | None:
        """The server that actions mean."""
        return None

    def target_host(self) -> LinkStatus | None:
        """The host that actions mean."""
        return None

    def context(self) -> Context:
        """What the registry decides about."""
        server = self.target_server()
        return Context(
            services=self.services,
            screen=self.WHERE,
            server=server,
            host=self.target_host(),
            busy=self.console_app.jobs.busy(server.name) if server else "",
            benching=self.console_app.bench.running,
        )

    async def action_act(self, name: str) -> None:
        """Runs an action of the registry, or says why not. The only way in for keys, mouse and palette."""
        spec = BY_ID[name]
        context = self.context()
        decision = spec.decide(context)
        if not decision.allowed:
            self.console_app.tell(
                f"{spec.title_in(context)} is disabled because {decision.reason}", "warning"
            )
            return
        method = name.replace("-", "_")
        try:
            if name.startswith("pin-"):
                self.console_app.do_pin(context, int(name[4:]))
                return
            handler = getattr(self, f"do_{method}", None) or getattr(self.console_app, f"do_{method}")
            result = handler(context)
            if inspect.isawaitable(result):
                await result
        except ConsoleError as error:
            self.console_app.show_error(error)

    # Filter and command line

    def do_filter(self, context: Context) -> None:
        """Opens the filter line."""
        self.query_one(Prompt).open("filter", self.filter_text)

    def do_command(self, context: Context) -> None:
        """Opens the command line."""
        self.query_one(Prompt).open("command", suggestions=self.console_app.command_names())

    def late_key(self, event: events.Key) -> bool:
        """Takes a letter that was typed right after ``/`` or ``:`` but sent to where the focus was before."""
        prompt = self.query_one(Prompt)
        if not (prompt.is_open and event.is_printable and event.character):
            return False
        prompt.insert(event.character)
        return True

    def set_filter(self, text: str) -> None:
        """Filters what the screen shows."""
        self.filter_text = text
        self.repaint()

    def on_prompt_typed(self, event: Prompt.Typed) -> None:
        """A filter works while it is typed."""
        self.set_filter(event.text)

    def on_prompt_entered(self, event: Prompt.Entered) -> None:
        """Enter keeps the filter, or runs the command."""
        self.focus_body()
        if event.mode == "filter":
            self.set_filter(event.text)
        elif event.text:
            self.console_app.run_command(event.text)

    def on_prompt_left(self, event: Prompt.Left) -> None:
        """Escape clears the filter."""
        if event.mode == "filter":
            self.set_filter("")
        self.focus_body()

    def focus_body(self) -> None:
        """Puts the focus where it belongs on this screen."""
        for widget in self.focus_chain:
            if widget.parent is None or not isinstance(widget.parent, Prompt):
                widget.focus()
                return

    def do_next_panel(self, context: Context) -> None:
        """Moves the focus."""
        self.focus_next()

    def do_back(self, context: Context) -> None:
        """Clears the filter, else leaves the screen."""
        if self.filter_text:
            self.set_filter("")
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def on_resize(self) -> None:
        """How much of a series is asked for depends on the room there is."""
        self.call_after_refresh(self.repaint)

    def on_chart_resized(self) -> None:
        """The same when only the panels have other sizes."""
        self.call_after_refresh(self.repaint)

    def on_screen_resume(self) -> None:
        """A screen that comes back shows what is true now."""
        self.repaint()
