"""The last line of defence for text on its way to the terminal, and text cut to cells.

The boundary (``core.text.sanitise``) is the first. Nothing here trusts that it was passed: every widget
draws outside text through ``clean``, and ``TerminalFilter`` looks at every segment that Textual paints.
Pure; knows nothing of Textual.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from rich.cells import cell_len, set_cell_size

from dflash_backend.core.text import sanitise

Align = Literal["left", "right", "center"]
Piece = tuple[str, str]
"""Text and its role (see ``look.ROLES``)."""
Pieces = tuple[Piece, ...]

_LONGEST = 16_384
"""Characters of one piece of outside text that are ever looked at."""

_ASCII = str.maketrans(
    {
        "…": "~",
        "·": "|",
        "–": "-",
        "—": "-",
        "−": "-",
        "→": ">",
        "←": "<",
        "▼": "v",
        "▲": "^",
        "●": "*",
        "◐": "~",
        "○": "o",
        "✖": "x",
        "✓": "+",
        "◇": "<",
        "×": "x",
        "⚑": "!",
        "┤": "|",
        "╎": ":",
        "»": ">",
        "«": "<",
        "“": '"',
        "”": '"',
        "’": "'",
        "≥": ">",
        "≤": "<",
        "∞": "~",
        "▶": ">",
        "█": "#",
        "▇": "#",
        "▁": ".",
    }
)


def clean(text: str, limit: int = _LONGEST) -> str:
    """One line of text without anything that a terminal might obey, at most ``limit`` characters."""
    if len(text) > limit:
        # Cut before looking: a line of a megabyte must not cost more than what can be shown of it.
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return sanitise(text, multiline=False)


def width_of(text: str) -> int:
    """Cells that ``text`` takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, align: Align = "left") -> str:
    """``text`` in exactly ``width`` cells: padded, or cut with an ellipsis. Wide characters are counted."""
    if width <= 0:
        return ""
    cells = width_of(text)
    if cells > width:
        return set_cell_size(text, width - 1) + "…"
    room = width - cells
    if align == "right":
        return " " * room + text
    if align == "center":
        return " " * (room // 2) + text + " " * (room - room // 2)
    return text + " " * room


def to_ascii(text: str) -> str:
    """The same number of cells in ASCII alone; what has no likeness becomes ``?``."""
    text = text.translate(_ASCII)
    if text.isascii():
        return text
    return "".join(_ascii_of(char) for char in text)


@lru_cache(maxsize=4096)
def _ascii_of(char: str) -> str:
    code = ord(char)
    if code < 128:
        return char
    if 0x2500 <= code <= 0x257F:
        return "-" if char in "─━┄┅┈┉╌╍═╴╶╸╺" else "|" if char in "│┃┆┇┊┋╎╏║╵╷╹╻" else "+"
    if 0x2580 <= code <= 0x259F:
        return "#" if char in "█▇▆▅▉▊▋" else " "
    if 0x2800 <= code <= 0x28FF:
        return " " if code == 0x2800 else "*"
    return "?" * max(0, cell_len(char))
