"""What the application says and how it fails: messages without markup, background work, no traceback."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from rich.text import Text
from textual.app import App
from textual.content import Content
from textual.dom import DOMNode
from textual.widget import Widget

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.text import sanitise
from dflash_console.tui import faults
from dflash_console.tui.safetext import clean

Severity = Literal["information", "warning", "error"]


class Shell(App[int]):
    """Base of the application: the error policy stands here and nowhere else."""

    def __init__(self, *, log_dir: Path | None) -> None:
        super().__init__()
        # Every step of an animation is a repaint that has to go through SSH.
        self.animation_level = "none"
        self._log_dir = log_dir
        self._log_path: Path | None = None

    def open_log(self) -> None:
        """Begins to write the console's own log."""
        self._log_path = faults.log_to_file(self._log_dir)

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
        self.copy_to_clipboard(sanitise(text))
        self.tell(f"copied {what} through the terminal (OSC 52); where that is blocked: S saves logs")

    def set_title(self, panel: Widget, text: str) -> None:
        """The title of a panel, as plain text, painted only when it is another one."""
        title = Content(clean(text, 200))
        if getattr(panel, "_border_title", None) != title:
            panel.border_title = title

    def background(
        self,
        node: DOMNode,
        work: Callable[[], Coroutine[Any, Any, object]],
        name: str,
        *,
        group: str,
        exclusive: bool = False,
    ) -> None:
        """Runs work beside the screens until it is done or ``node`` is gone; a failure is a message."""
        node.run_worker(
            self._guarded(work, name), name=name, group=group, exclusive=exclusive, exit_on_error=False
        )

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        try:
            await work()
        except ConsoleError as error:
            self.show_error(error)
        except Exception as error:
            faults.log_error(error)
            what = f"{name} failed: {type(error).__name__}"
            where = f"details: {self._log_path or 'no log could be written'}"
            self.notify(f"{what}\n{where}", severity="error", timeout=15)

    def action_help_quit(self) -> None:
        """``ctrl+c`` does not end anything by accident; it says what does."""
        self.tell("q leaves; y copies what is selected")

    def _handle_exception(self, error: Exception) -> None:
        """Ends the console with a plain message; the traceback goes to the log, without locals."""
        if self._exit:
            faults.log_error(error)  # Leaving already: widgets that are being removed may stumble.
            return
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._return_code = 5
        if self._log_path is None:
            self.open_log()
        faults.log_error(error)
        self._exit_renderables.append(Text(faults.last_words(error, self._log_path)))
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        """The first error is the cause; what followed is in the log."""
        for renderable in self._exit_renderables[:1]:
            self.error_console.print(renderable, soft_wrap=True)
        self._exit_renderables.clear()
