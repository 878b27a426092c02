"""A log that keeps up: lines come in batches, are painted at most ten times a second, memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from dflash_console.tui.logstore import LogStore, severity
from dflash_console.tui.look import Look
from dflash_console.tui.safetext import clean, fit

_PAINT_S = 0.1


class LogView(ScrollView, can_focus=True):
    """Follows the end of a log until told otherwise; wraps, filters, scrolls sideways; errors stand out."""

    DEFAULT_CSS = """
    LogView { height: 1fr; background: transparent; scrollbar-size: 0 1; }
    """
    ALLOW_SELECT = True

    follow: reactive[bool] = reactive(True, repaint=False)
    wrap: reactive[bool] = reactive(False, repaint=False)
    filter: reactive[str] = reactive("", repaint=False)

    class Changed(Message):
        """Something that the title of a log panel tells has changed: counts, follow, wrap, filter."""

        def __init__(self, log: LogView) -> None:
            super().__init__()
            self.log_view = log

    def __init__(
        self,
        *,
        empty: str = "no lines yet",
        max_lines: int = 20_000,
        id: str | None = None,  # noqa: A002 (Textual's name)
    ) -> None:
        super().__init__(id=id)
        self.store = LogStore(max_lines)
        self._empty = empty
        self._look: Look | None = None
        self._pending = False
        self._lost_rows = 0
        self._moving = False

    @property
    def status(self) -> str:
        """State of the view in words, for a panel's title."""
        store = self.store
        parts = ["following" if self.follow else "paused", f"{store.shown} lines"]
        if self.filter:
            parts[1] = f"{store.shown} of {len(store)} lines"
            parts.append(f"filter {clean(self.filter, 24)}")
        if self.wrap:
            parts.append("wrapped")
        if store.dropped:
            parts.append(f"{store.dropped} older dropped")
        return " · ".join(parts)

    def set_empty(self, text: str) -> None:
        """The words that stand there when there are no lines."""
        if text != self._empty:
            self._empty = text
            self.refresh()

    def write(self, batch: Sequence[str]) -> None:
        """Adds lines; they are painted with the next turn of the view's clock, not one by one."""
        if not batch:
            return
        self._lost_rows += self.store.append(batch)
        if not self._pending:
            self._pending = True
            self.set_timer(_PAINT_S, self._flush)

    def clear(self) -> None:
        """Empties the view."""
        self.store.clear()
        self._lost_rows = 0
        self._resize_content()
        self.refresh()

    def _flush(self) -> None:
        self._pending = False
        lost, self._lost_rows = self._lost_rows, 0
        before = self.virtual_size.height
        self._resize_content()
        if self.follow:
            self._to_end()
            self.refresh()
        else:
            # The reader's place stays where it is, though lines fall out above it.
            if lost:
                with self._own_move():
                    self.scroll_to(y=max(0, self.scroll_offset.y - lost), animate=False, immediate=True)
            if lost or before < self.scroll_offset.y + self.size.height:
                self.refresh()
        self.post_message(self.Changed(self))

    def _resize_content(self) -> None:
        width = 0 if self.wrap else self.store.widest
        with self._own_move():
            self.virtual_size = Size(width, self.store.rows)

    def _to_end(self) -> None:
        end = max(0, self.virtual_size.height - self.scrollable_content_region.height)
        with self._own_move():
            self.scroll_to(y=end, animate=False, immediate=True, force=True)

    def _rewrap(self, pattern: str | None = None) -> None:
        """Lays the lines out anew; the reader's place stays the same line."""
        top = self.store.number_at(self.scroll_offset.y)
        if pattern is not None:
            self.store.set_filter(pattern)
        self.store.set_wrap(max(1, self.scrollable_content_region.width) if self.wrap else 0)
        self._resize_content()
        if self.follow:
            self._to_end()
        elif top is not None:
            with self._own_move():
                self.scroll_to(y=self.store.row_of(top), animate=False, immediate=True, force=True)
        self.refresh()
        self.post_message(self.Changed(self))

    def on_resize(self) -> None:
        """Wrapping depends on the width."""
        self._rewrap()

    def watch_wrap(self) -> None:
        """Wraps or not; sideways scrolling ends with wrapping."""
        if self.wrap:
            self.scroll_to(x=0, animate=False, immediate=True)
        self._rewrap()

    def watch_follow(self, follow: bool) -> None:
        """Goes to the end when following begins."""
        if follow and self.is_mounted:
            self._to_end()
            self.refresh()
        self.post_message(self.Changed(self))

    def watch_filter(self, pattern: str) -> None:
        """Shows other lines."""
        self._rewrap(pattern)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling away from the end pauses; scrolling back to the end follows again."""
        super().watch_scroll_y(old_value, new_value)
        at_end = round(new_value) >= self.virtual_size.height - self.scrollable_content_region.height
        if self._moving:
            return
        if new_value < old_value and not at_end:
            self.follow = False
        elif at_end and new_value > old_value:
            self.follow = True

    @contextmanager
    def _own_move(self) -> Iterator[None]:
        """Scrolling inside is the view's own and says nothing about what the reader wants."""
        before, self._moving = self._moving, True
        try:
            yield
        finally:
            self._moving = before

    def visible_lines(self) -> list[str]:
        """The lines that can be seen now, each once."""
        top = self.scroll_offset.y
        seen: dict[int, str] = {}
        for row in range(top, top + self.scrollable_content_region.height):
            place = self.store.at_row(row)
            if place is not None:
                seen.setdefault(place[0], self.store.line(place[0]))
        return list(seen.values())

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Text marked with the mouse; only where a row is a line."""
        if self.wrap:
            return None
        return selection.extract("\n".join(self.store.lines())), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Paints what is marked."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the log."""
        if self._look is None:
            self._look = Look(self.app)
        look, base = self._look, self.rich_style
        width = self.scrollable_content_region.width
        scroll_x, scroll_y = self.scroll_offset
        row = scroll_y + y
        if not self.store.rows and y == 0:
            words = "no line has this" if self.filter and len(self.store) else self._empty
            return Strip([Segment(fit(clean(words), width), base + look.rich("dim"))], width)
        text = self.store.row_text(row)
        place = self.store.at_row(row)
        if text is None or place is None:
            return Strip.blank(width, base)
        style = base + look.rich(severity(self.store.line(place[0])))
        segments = self._segments(text, row, style)
        strip = Strip(segments).crop_extend(scroll_x, scroll_x + width, style)
        return strip.apply_offsets(scroll_x, row) if not self.wrap else strip

    def _segments(self, text: str, row: int, style: Style) -> list[Segment]:
        selection = None if self.wrap else self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            start, end = span
            end = len(text) if end == -1 else end
            marked = style + self.screen.get_component_rich_style("screen--selection", partial=True)
            return [
                Segment(text[:start], style),
                Segment(text[start:end], marked),
                Segment(text[end:], style),
            ]
        if self.filter:
            needle = self.filter
            haystack = text if needle != needle.lower() else text.lower()
            at = haystack.find(needle)
            if at >= 0 and len(haystack) == len(text):
                hit = style + Style(underline=True, bold=True)
                end = at + len(needle)
                return [Segment(text[:at], style), Segment(text[at:end], hit), Segment(text[end:], style)]
        return [Segment(text, style)]
