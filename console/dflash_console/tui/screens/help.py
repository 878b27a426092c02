"""The keys that work on the screen in front, from the registry; disabled ones with the reason."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from dflash_console.tui.actions import ActionSpec, actions_in
from dflash_console.tui.deciders import Context
from dflash_console.tui.keys import key_text, keys_of
from dflash_console.tui.look import STATE_GLYPHS
from dflash_console.tui.safetext import Pieces, clean, fit
from dflash_console.tui.screens.base import paragraphs

_GROUPS = ("servers", "profiles", "benchmarks", "hosts", "log", "view", "general")
_KEY = 8
_TITLE = 14


class HelpScreen(ModalScreen[None]):
    """Closed by the keys that opened it, or escape."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "app.pop_screen", "close", show=False),
    ]
    AUTO_FOCUS = "#help-text"

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._asked_in = context

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Content(f"help   {clean(self._asked_in.screen)}")
            dialog.border_subtitle = Content("esc closes")
            with VerticalScroll(id="help-text", can_focus=True):
                yield Static(
                    paragraphs(help_lines(self._asked_in, min(98, self.app.size.width - 9))), markup=False
                )


def help_lines(context: Context, width: int) -> list[Pieces]:
    """The help of one screen, wrapped at ``width`` cells under its columns."""
    lines: list[Pieces] = []
    specs = actions_in(context.screen)
    for group in _GROUPS:
        inside = [spec for spec in specs if spec.group == group]
        if not inside:
            continue
        lines.append(((group, "accent"),))
        pins = [spec for spec in inside if spec.id.startswith("pin-")]
        for spec in inside:
            if spec in pins:
                if spec is pins[0]:
                    lines += _pin_lines(context)
                continue
            lines += _lines_of(spec, context, width)
        lines.append(())
    lines.append((("states", "accent"),))
    for state, (glyph, role) in STATE_GLYPHS.items():
        lines.append(((f"  {fit(glyph, _KEY - 2)}", role), (str(state), "text")))
    return lines


def _keys(spec: ActionSpec, context: Context) -> str:
    keys = keys_of(spec, context.services.keymap).split(",")
    return " ".join(key_text(key) for key in keys)


def _lines_of(spec: ActionSpec, context: Context, width: int) -> list[Pieces]:
    decision = spec.decide(context)
    allowed = decision.allowed
    room = max(20, width - _KEY - _TITLE)
    first, *rest = textwrap.wrap(spec.description, room)
    role = "text" if allowed else "dim"
    lines: list[Pieces] = [
        (
            (f"  {fit(_keys(spec, context), _KEY - 2)}", "accent" if allowed else "faint"),
            (fit(spec.title_in(context), _TITLE), "strong" if allowed else "dim"),
            (first, role),
        )
    ]
    indent = (" " * (_KEY + _TITLE), "dim")
    lines += [(indent, (text, role)) for text in rest]
    if not allowed:
        reason = textwrap.wrap(f"disabled because {clean(decision.reason)}", room)
        lines += [(indent, (text, "warn")) for text in reason]
    return lines


def _pin_lines(context: Context) -> list[Pieces]:
    pinned = context.services.pinned[:9]
    if not pinned:
        return [
            (
                (f"  {fit('1-9', _KEY - 2)}", "faint"),
                (fit("pinned", _TITLE), "dim"),
                ("disabled because no profile is pinned in the configuration", "warn"),
            )
        ]
    return [
        (
            (f"  {fit(str(number), _KEY - 2)}", "accent"),
            (fit("pinned", _TITLE), "strong"),
            (f"profile {name}", "text"),
        )
        for number, name in enumerate(pinned, 1)
    ]
