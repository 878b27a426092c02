"""How things look: themes, roles of colour, glyphs. Colour never stands alone."""

from __future__ import annotations

from typing import Final

from rich.style import Style as RichStyle
from textual.app import App
from textual.style import Style
from textual.theme import Theme

from dflash_backend.core.states import LinkState, ServerState

_DARK: Final = {
    "c-text": "#c8d0d9",
    "c-dim": "#7f8b99",
    "c-faint": "#3b4652",
    "c-good": "#86b98a",
    "c-warn": "#d9b266",
    "c-bad": "#e27878",
    "c-accent": "#5fb8c9",
    "c-second": "#a99bd6",
    "c-cursor": "#1f2b36",
    "c-cursor-off": "#182028",
    "c-panel": "#12171d",
}
_LIGHT: Final = {
    "c-text": "#26303a",
    "c-dim": "#66727f",
    "c-faint": "#c2c9d0",
    "c-good": "#2f7d3b",
    "c-warn": "#946200",
    "c-bad": "#b3261e",
    "c-accent": "#0b7285",
    "c-second": "#6741a8",
    "c-cursor": "#d5e8ec",
    "c-cursor-off": "#e6ebee",
    "c-panel": "#fbfcfc",
}
_ANSI: Final = {
    "c-text": "ansi_default",
    "c-dim": "ansi_bright_black",
    "c-faint": "ansi_bright_black",
    "c-good": "ansi_green",
    "c-warn": "ansi_yellow",
    "c-bad": "ansi_red",
    "c-accent": "ansi_cyan",
    "c-second": "ansi_magenta",
    "c-cursor": "ansi_blue",
    "c-cursor-off": "ansi_black",
    "c-panel": "ansi_default",
}

DARK: Final = Theme(
    name="dflash-dark",
    primary=_DARK["c-accent"],
    secondary=_DARK["c-second"],
    accent=_DARK["c-accent"],
    foreground=_DARK["c-text"],
    background="#0e1217",
    surface="#12171d",
    panel="#182028",
    success=_DARK["c-good"],
    warning=_DARK["c-warn"],
    error=_DARK["c-bad"],
    dark=True,
    variables={**_DARK, "border": _DARK["c-faint"], "border-blurred": _DARK["c-faint"]},
)
LIGHT: Final = Theme(
    name="dflash-light",
    primary=_LIGHT["c-accent"],
    secondary=_LIGHT["c-second"],
    accent=_LIGHT["c-accent"],
    foreground=_LIGHT["c-text"],
    background="#f3f5f6",
    surface="#fbfcfc",
    panel="#e6ebee",
    success=_LIGHT["c-good"],
    warning=_LIGHT["c-warn"],
    error=_LIGHT["c-bad"],
    dark=False,
    variables={**_LIGHT, "border": _LIGHT["c-faint"], "border-blurred": _LIGHT["c-faint"]},
)
ANSI_THEME: Final = "ansi-dark"
"""Textual's theme of the terminal's own 16 colours; also the one for transparent terminals."""

THEMES: Final = (DARK, LIGHT)
DEFAULT_VARIABLES: Final = _DARK
ANSI_VARIABLES: Final = _ANSI

ROLES: Final = {
    "text": "$c-text",
    "strong": "bold $c-text",
    "dim": "$c-dim",
    "faint": "$c-faint",
    "good": "$c-good",
    "warn": "$c-warn",
    "bad": "$c-bad",
    "accent": "$c-accent",
    "accent-strong": "bold $c-accent",
    "second": "$c-second",
}
"""Role -> style in the terms of Textual's ``Content``."""

STATE_GLYPHS: Final = {
    ServerState.READY: ("●", "good"),
    ServerState.STARTING: ("◐", "accent"),
    ServerState.DRAINING: ("◐", "warn"),
    ServerState.STOPPING: ("◐", "warn"),
    ServerState.STOPPED: ("○", "dim"),
    ServerState.FAILED: ("✖", "bad"),
    ServerState.UNREACHABLE: ("?", "warn"),
    ServerState.UNKNOWN: ("?", "dim"),
    ServerState.FOREIGN: ("◇", "second"),
}
LINK_GLYPHS: Final = {
    LinkState.UP: ("●", "good"),
    LinkState.CONNECTING: ("◐", "accent"),
    LinkState.DISABLED: ("○", "dim"),
    LinkState.LOST: ("?", "warn"),
    LinkState.AUTH_FAILED: ("✖", "bad"),
    LinkState.KEY_UNKNOWN: ("✖", "warn"),
    LinkState.KEY_CHANGED: ("✖", "bad"),
    LinkState.CONFIG_ERROR: ("✖", "bad"),
}
ASCII_GLYPHS: Final = {"●": "*", "◐": "~", "○": "o", "✖": "x", "◇": "<", "✓": "+", "⚑": "!", "?": "?"}
"""The ASCII set for the glyphs above; the terminal filter applies it with ``--ascii``."""


class Look:
    """Roles as Rich styles for widgets that draw lines themselves; follows the theme."""

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._theme = ""
        self._styles: dict[str, RichStyle] = {}

    def rich(self, role: str) -> RichStyle:
        """The foreground style of a role in the theme that is shown now."""
        if self._theme != self._app.theme:
            self._theme = self._app.theme
            self._styles.clear()
        style = self._styles.get(role)
        if style is None:
            style = Style.parse(ROLES[role], self._app.theme_variables).rich_style
            self._styles[role] = style
        return style
