"""The line at the bottom in which filters and commands are typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label

Mode = Literal["filter", "command"]


class Prompt(Horizontal):
    """Hidden until asked for. ``filter`` tells every letter, ``command`` only the whole line."""

    DEFAULT_CSS = """
    Prompt { height: 1; padding: 0 1; }
    Prompt Label { width: auto; color: $c-accent; }
    Prompt Input { width: 1fr; height: 1; border: none; padding: 0 1; background: transparent; }
    Prompt Input:focus { border: none; background: transparent; background-tint: transparent 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", show=False),
        Binding("tab", "complete", "complete", show=False, priority=True),
    ]

    class Typed(Message):
        """The text of a filter has changed."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Entered(Message):
        """A line was entered."""

        def __init__(self, mode: Mode, text: str) -> None:
            super().__init__()
            self.mode = mode
            self.text = text

    class Left(Message):
        """The prompt was left without entering anything."""

        def __init__(self, mode: Mode) -> None:
            super().__init__()
            self.mode = mode

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id)
        self.display = False
        self.mode: Mode = "filter"

    def compose(self) -> ComposeResult:
        """A sign and the line."""
        yield Label("/", markup=False)
        yield Input(select_on_focus=False, max_length=200)

    @property
    def is_open(self) -> bool:
        """True while something is typed here."""
        return self.display

    def open(self, mode: Mode, text: str = "", suggestions: Iterable[str] = ()) -> None:
        """Shows the prompt and puts the cursor into it."""
        self.mode = mode
        self.query_one(Label).update("/" if mode == "filter" else ":")
        line = self.query_one(Input)
        line.suggester = SuggestFromList(suggestions, case_sensitive=False) if mode == "command" else None
        with line.prevent(Input.Changed):
            line.value = text
        line.cursor_position = len(text)
        # At once, not with the next refresh: what is typed right after the key belongs here.
        self.display = True
        self.screen.set_focus(line)

    def insert(self, text: str) -> None:
        """Types into the line."""
        self.query_one(Input).insert_text_at_cursor(text)

    def close(self) -> None:
        """Hides it again."""
        self.display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters work while they are typed."""
        event.stop()
        if self.mode == "filter" and self.is_open:
            self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter ends the line."""
        event.stop()
        self.close()
        self.post_message(self.Entered(self.mode, event.value.strip()))

    def action_complete(self) -> None:
        """Takes the suggestion, as the right arrow does; never moves to another panel."""
        line = self.query_one(Input)
        line.action_end()
        line.action_cursor_right()

    def action_leave(self) -> None:
        """Escape leaves."""
        self.close()
        self.post_message(self.Left(self.mode))
