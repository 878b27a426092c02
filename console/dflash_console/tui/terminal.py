"""The filter between everything that is painted and the terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from dflash_backend.core.text import sanitise
from dflash_console.tui.safetext import fit, to_ascii


class TerminalFilter(LineFilter):
    """Looks at every segment that is about to be painted: controls are removed, ``ascii`` maps the rest.

    This also covers what Textual draws by itself (toasts, inputs, scrollbars, the palette).
    """

    def __init__(self, *, ascii_only: bool) -> None:
        super().__init__(enabled=True)
        self._ascii_only = ascii_only

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments with safe text; the same list when nothing had to change."""
        changed = False
        result: list[Segment] = []
        for segment in segments:
            text = segment.text
            if not text.isprintable() and not segment.control:
                # Padded again, so that what Textual has measured stays true and nothing shifts.
                text = fit(sanitise(text, multiline=False), cell_len(text))
            if self._ascii_only and not text.isascii():
                text = to_ascii(text)
            if text is not segment.text:
                segment = Segment(text, segment.style, segment.control)
                changed = True
            result.append(segment)
        return result if changed else segments
