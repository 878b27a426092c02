"""A table of fixed columns: nothing jumps, and only rows that changed are painted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dflash_console.tui.look import Look
from dflash_console.tui.safetext import Align, Piece, Pieces, clean, fit, width_of

_ROOMY = 96
"""Cells from which on columns stand two apart instead of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``width`` is its smallest, ``most`` its largest; columns of low ``rank`` go first when
    there is no room. Rank 100 is never left out. Spare room first brings columns to ``want``."""

    key: str
    title: str
    width: int
    want: int = 0
    most: int = 0
    align: Align = "left"
    rank: int = 100


@dataclass(frozen=True, slots=True)
class Placed:
    """A column with its place."""

    column: Column
    x: int
    width: int


def layout(columns: Sequence[Column], width: int) -> tuple[Placed, ...]:
    """Which columns fit into ``width`` cells, and where. Depends on the width alone, never on the data."""
    kept = list(columns)
    gap = 2 if width >= _ROOMY else 1

    def needed() -> int:
        return sum(c.width for c in kept) + gap * max(0, len(kept) - 1)

    while needed() > width and any(c.rank < 100 for c in kept):
        kept.remove(min(kept, key=lambda c: c.rank))
    spare = max(0, width - needed())
    widths = {c.key: c.width for c in kept}
    for column in sorted(kept, key=lambda c: -c.rank):
        add = max(0, min(column.want - column.width, spare))
        widths[column.key] += add
        spare -= add
    growing = [c for c in kept if c.most > widths[c.key]]
    while spare and growing:
        share = max(1, spare // len(growing))
        for column in list(growing):
            add = min(share, spare, column.most - widths[column.key])
            widths[column.key] += add
            spare -= add
            if widths[column.key] >= column.most:
                growing.remove(column)
    placed, x = [], 0
    for column in kept:
        placed.append(Placed(column, x, widths[column.key]))
        x += widths[column.key] + gap
    return tuple(placed)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: pieces by column key. ``note`` covers the columns from ``note_from`` to ``note_to``."""

    key: str
    cells: Mapping[str, Pieces] = field(default_factory=dict)
    note: Pieces = ()
    note_from: str = ""
    note_to: str = ""


def fit_pieces(pieces: Pieces, width: int, align: Align = "left") -> list[Piece]:
    """Pieces in exactly ``width`` cells."""
    pieces = tuple((clean(text), role) for text, role in pieces)
    total = sum(width_of(text) for text, _ in pieces)
    if total <= width:
        pad = (" " * (width - total), "text")
        return [pad, *pieces] if align == "right" else [*pieces, pad]
    result: list[Piece] = []
    room = width
    for text, role in pieces:
        cells = width_of(text)
        if cells >= room:
            # Something is lost for certain: the ellipsis belongs here.
            result.append((fit(text, room) if cells > room else fit(text + " ", room), role))
            break
        result.append((text, role))
        room -= cells
    return result


class Grid(ScrollView, can_focus=True):
    """Rows under a fixed header; the cursor stays on its row when rows move."""

    DEFAULT_CSS = """
    Grid { height: 1fr; background: transparent; scrollbar-size: 0 1; overflow-x: hidden; }
    Grid > .grid--header { color: $c-dim; text-style: none; }
    Grid > .grid--cursor { background: $c-cursor-off; }
    Grid:focus > .grid--cursor { background: $c-cursor; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"grid--header", "grid--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "move(-1000000)", "first", show=False),
        Binding("end", "move(1000000)", "last", show=False),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, grid: Grid, key: str | None) -> None:
            super().__init__()
            self.grid = grid
            self.key = key

        @property
        def control(self) -> Grid:
            """The grid this came from."""
            return self.grid

    class Chosen(Message):
        """The row under the cursor was clicked."""

        def __init__(self, grid: Grid, key: str) -> None:
            super().__init__()
            self.grid = grid
            self.key = key

        @property
        def control(self) -> Grid:
            """The grid this came from."""
            return self.grid

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        empty: str = "nothing here",
        header: bool = True,
        id: str | None = None,  # noqa: A002 (Textual's name)
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = tuple(columns)
        self._rows: tuple[Row, ...] = ()
        self._empty = empty
        self._header = 1 if header else 0
        self._look: Look | None = None
        self._placed: tuple[Placed, ...] = ()
        self._placed_for = -1

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as shown."""
        return self._rows

    @property
    def key(self) -> str | None:
        """Key of the row under the cursor."""
        return self._rows[self.cursor].key if 0 <= self.cursor < len(self._rows) else None

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The columns that are shown now, and where."""
        width = self.scrollable_content_region.width
        if width != self._placed_for:
            self._placed_for = width
            self._placed = layout(self._columns, width)
        return self._placed

    def set_empty(self, text: str) -> None:
        """The words that stand there when there are no rows."""
        if text != self._empty:
            self._empty = text
            if not self._rows:
                self.refresh()

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Shows these rows; paints only what differs from before."""
        old, new = self._rows, tuple(rows)
        if old == new:
            return
        before = self.key
        self._rows = new
        if len(old) == len(new):
            for index, (was, now) in enumerate(zip(old, new, strict=True)):
                if was != now:
                    self._refresh_row(index)
        else:
            self.virtual_size = Size(0, len(new) + self._header)
            self.refresh(layout=self.styles.is_auto_height)
        keys = [row.key for row in new]
        if before in keys:
            self.cursor = keys.index(before)
        else:
            self.cursor = max(0, min(self.cursor, len(new) - 1))
        if self.key != before:
            self.post_message(self.Moved(self, self.key))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """With ``height: auto``: all rows, or the line that says that there are none."""
        return max(1, len(self._rows)) + self._header

    def select(self, key: str) -> bool:
        """Puts the cursor on a row; False when there is no such row."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self.cursor = index
                return True
        return False

    def _refresh_row(self, index: int) -> None:
        if 0 <= index < len(self._rows):
            y = index + self._header - self.scroll_offset.y
            if self._header <= y < self.size.height:
                self.refresh(Region(0, y, self.size.width, 1))

    def watch_cursor(self, old: int, new: int) -> None:
        """Paints both rows and keeps the cursor in sight."""
        self._refresh_row(old)
        self._refresh_row(new)
        self._show_cursor()
        if old != new and self.is_mounted:
            self.post_message(self.Moved(self, self.key))

    def _show_cursor(self) -> None:
        room = self.size.height - self._header
        if room <= 0:
            return
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, immediate=True)

    def action_move(self, by: int) -> None:
        """Moves the cursor."""
        self.cursor = max(0, min(len(self._rows) - 1, self.cursor + by)) if self._rows else 0

    def action_page(self, direction: int) -> None:
        """Moves the cursor by a page."""
        self.action_move(direction * max(1, self.size.height - self._header - 1))

    def on_click(self, event: events.Click) -> None:
        """A click selects; a click on the selected row, or a double click, chooses."""
        index = event.y - self._header + self.scroll_offset.y
        if event.y < self._header or not 0 <= index < len(self._rows):
            return
        if index == self.cursor and (event.chain > 1 or self.has_focus):
            self.post_message(self.Chosen(self, self._rows[index].key))
        self.cursor = index

    def on_resize(self) -> None:
        """The number of rows is known only now."""
        self.virtual_size = Size(0, len(self._rows) + self._header)

    def render_line(self, y: int) -> Strip:
        """One line of the table."""
        if self._look is None:
            self._look = Look(self.app)
        base = self.rich_style
        width = self.scrollable_content_region.width
        if y < self._header:
            return self._header_strip(
                width, base + self.get_component_rich_style("grid--header", partial=True)
            )
        index = y - self._header + self.scroll_offset.y
        if not self._rows and index == 0:
            return Strip([Segment(fit(clean(self._empty), width), base + self._look.rich("dim"))], width)
        if not 0 <= index < len(self._rows):
            return Strip.blank(width, base)
        if index == self.cursor and self._rows:
            base = base + self.get_component_rich_style("grid--cursor", partial=True)
        return self._row_strip(self._rows[index], width, base)

    def _header_strip(self, width: int, style: RichStyle) -> Strip:
        text = ""
        for place in self.placed:
            text = fit(text, place.x) + fit(place.column.title, place.width, place.column.align)
        return Strip([Segment(fit(text, width), style)], width)

    def _row_strip(self, row: Row, width: int, base: RichStyle) -> Strip:
        assert self._look is not None
        segments: list[Segment] = []
        used = 0
        note_range = self._note_range(row)
        for index, place in enumerate(self.placed):
            if note_range and note_range[0] < index <= note_range[1]:
                continue
            if place.x > used:
                segments.append(Segment(" " * (place.x - used), base))
                used = place.x
            if note_range and index == note_range[0]:
                last = self.placed[note_range[1]]
                room = last.x + last.width - place.x
                pieces = fit_pieces(row.note, room)
            else:
                room = place.width
                pieces = fit_pieces(row.cells.get(place.column.key, ()), room, place.column.align)
            segments += [Segment(text, base + self._look.rich(role)) for text, role in pieces if text]
            used += room
        strip = Strip(segments)
        return strip.adjust_cell_length(width, base)

    def _note_range(self, row: Row) -> tuple[int, int] | None:
        """Places that the note covers: those between its two columns that are shown at this width."""
        if not row.note:
            return None
        keys = [place.column.key for place in self.placed]
        order = [column.key for column in self._columns]
        inside = order[order.index(row.note_from) : order.index(row.note_to) + 1]
        shown = [keys.index(key) for key in inside if key in keys]
        return (shown[0], shown[-1]) if shown else None
