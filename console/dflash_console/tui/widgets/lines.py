"""Several lines of pieces, painted only when they change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from dflash_console.tui.look import Look
from dflash_console.tui.safetext import Pieces
from dflash_console.tui.widgets.grid import fit_pieces


class Lines(Widget):
    """Lines cut at the right edge; as high as they are many."""

    DEFAULT_CSS = """
    Lines { height: auto; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id)
        self._lines: tuple[Pieces, ...] = ()
        self._look: Look | None = None

    def show(self, lines: Sequence[Pieces]) -> None:
        """Shows other lines; does nothing when they are the same."""
        new = tuple(lines)
        if new != self._lines:
            taller = len(new) != len(self._lines)
            self._lines = new
            self.refresh(layout=taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One row a line."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """One line."""
        if self._look is None:
            self._look = Look(self.app)
        base, width = self.rich_style, self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, base)
        pieces = fit_pieces(self._lines[y], width)
        return Strip([Segment(text, base + self._look.rich(role)) for text, role in pieces if text], width)
