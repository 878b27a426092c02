"""The chart on the screen: draws ``plot`` and paints only when what it shows has changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from dflash_console.tui.look import Look
from dflash_console.tui.plot import Flag, Frame, Line, render
from dflash_console.tui.safetext import Piece, fit


class Chart(Widget):
    """One or more lines over a span of time that ends now."""

    DEFAULT_CSS = """
    Chart { height: 1fr; width: 1fr; }
    """

    class Resized(Message):
        """The chart has another size: its screen may want to give it more or fewer points."""

    def __init__(
        self,
        *,
        label_width: int = 6,
        low: float = 0.0,
        time_axis: bool = True,
        flag_row: bool = False,
        empty: str = "no figures yet",
        id: str | None = None,  # noqa: A002 (Textual's name)
    ) -> None:
        super().__init__(id=id)
        self._label_width = label_width
        self._low = low
        self._time_axis = time_axis
        self._flag_row = flag_row
        self._empty = empty
        self._lines: tuple[Line, ...] = ()
        self._flags: tuple[Flag, ...] = ()
        self._span = (0.0, 0.0)
        self._ascii = False
        self._rows: list[list[Piece]] | None = None
        self._drawn_for = Size(0, 0)
        self._look: Look | None = None

    @property
    def columns(self) -> int:
        """How many points are worth drawing: two a cell of the plot."""
        return max(2, 2 * (self.size.width - self._label_width - 1))

    def show(
        self,
        lines: Sequence[Line],
        *,
        start: float,
        end: float,
        flags: Sequence[Flag] = (),
        ascii_only: bool = False,
    ) -> None:
        """Shows these lines between two moments; does nothing when they are the same."""
        new = (tuple(lines), tuple(flags), (start, end), ascii_only)
        if new == (self._lines, self._flags, self._span, self._ascii):
            return
        self._lines, self._flags, self._span, self._ascii = new
        self._rows = None
        self.refresh()

    def on_resize(self) -> None:
        """Another size is another drawing, and may be worth other points."""
        self.refresh()
        self.post_message(self.Resized())

    def _draw(self) -> list[list[Piece]]:
        width, height = self.size
        start, end = self._span
        frame = Frame(
            width=width,
            height=height,
            start=start,
            end=end,
            low=self._low,
            label_width=self._label_width,
            time_axis=self._time_axis,
            flag_row=self._flag_row,
            ascii_only=self._ascii,
        )
        rows = render(self._lines, frame, self._flags)
        if not any(value is not None for line in self._lines for value in line.values) and width > 2:
            rows[height // 2] = [(fit(self._empty, width, "center"), "dim")]
        return rows

    def render_line(self, y: int) -> Strip:
        """One row of the drawing."""
        if self._look is None:
            self._look = Look(self.app)
        if self._rows is None or self._drawn_for != self.size:
            # A new size is painted before its event comes.
            self._rows, self._drawn_for = self._draw(), self.size
        base, look = self.rich_style, self._look
        if y >= len(self._rows):
            return Strip.blank(self.size.width, base)
        segments = [Segment(text, base + look.rich(role)) for text, role in self._rows[y]]
        return Strip(segments).adjust_cell_length(self.size.width, base)
