"""Lines of a log in bounded memory, with a filter and wrapping; pure, no Textual."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from rich.cells import chop_cells

from dflash_console.tui.safetext import clean, width_of

_BAD = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|Traceback|Killed|Segmentation fault|[Oo]ut of memory|OutOfMemoryError"
    r"|[A-Z][A-Za-z]*(?:Error|Exception))\b"
)
_WARN = re.compile(r"\b(?:WARNING|WARN|Warning|UserWarning|FutureWarning|deprecated)\b")


def severity(line: str) -> str:
    """Role of a log line: ``bad`` for errors, ``warn`` for warnings, else ``text``."""
    if _BAD.search(line):
        return "bad"
    return "warn" if _WARN.search(line) else "text"


class LogStore:
    """The newest lines, numbered from the first that ever came.

    ``max_lines`` and ``max_chars`` bound the memory; what falls out is counted in ``dropped``. A view is a
    list of line numbers (all, or those the filter lets through) with the rows each takes when wrapped.
    """

    def __init__(self, max_lines: int = 20_000, max_chars: int = 8_000_000) -> None:
        self.max_lines = max_lines
        self.max_chars = max_chars
        self.dropped = 0
        self.widest = 0
        self._lines: list[str] = []
        self._chars = 0
        self._pattern = ""
        self._match_case = False
        self._wrap_width = 0
        self._view: list[int] = []
        self._ends: list[int] = []
        """Rows up to and including each line of the view; only kept while wrapping."""
        self._ends_base = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def total(self) -> int:
        """Lines that ever came."""
        return self.dropped + len(self._lines)

    @property
    def shown(self) -> int:
        """Lines that the filter lets through."""
        return len(self._view) if self._pattern else len(self._lines)

    @property
    def rows(self) -> int:
        """Rows on the screen that the view takes."""
        if not self._wrap_width:
            return self.shown
        return self._ends[-1] - self._ends_base if self._ends else 0

    def append(self, batch: Sequence[str]) -> int:
        """Adds lines; returns how many rows fell out at the top of the view."""
        start = self.total
        if len(batch) > self.max_lines:
            # Only the end of such a batch can ever be seen: the rest is counted, not looked at.
            skip = len(batch) - self.max_lines
            batch = batch[skip:]
            lost = self.rows
            self.dropped += len(self._lines) + skip
            self._lines, self._chars, self._view, self._ends, self._ends_base = [], 0, [], [], 0
            start = self.dropped
        else:
            lost = 0
        lines = [clean(line) for line in batch]
        self._lines += lines
        self._chars += sum(map(len, lines))
        for offset, line in enumerate(lines):
            self._add_to_view(start + offset, line)
        return lost + self._trim()

    def _add_to_view(self, number: int, line: str) -> None:
        if self._pattern:
            if not self._matches(line):
                return
            self._view.append(number)
        width = width_of(line)
        self.widest = max(self.widest, width)
        if self._wrap_width:
            last = self._ends[-1] if self._ends else self._ends_base
            self._ends.append(last + self._rows_of(line, width))

    def _rows_of(self, line: str, width: int) -> int:
        if width != len(line):
            return max(1, len(chop_cells(line, self._wrap_width)))  # wide characters do not split
        return max(1, -(-width // self._wrap_width))

    def _trim(self) -> int:
        cut = max(0, len(self._lines) - self.max_lines)
        chars = self._chars - sum(map(len, self._lines[:cut]))
        while chars > self.max_chars and cut < len(self._lines) - 1:
            chars -= len(self._lines[cut])
            cut += 1
        if not cut:
            return 0
        del self._lines[:cut]
        self._chars = chars
        self.dropped += cut
        gone = cut
        if self._pattern:
            gone = bisect_right(self._view, self.dropped - 1)
            del self._view[:gone]
        if not self._wrap_width:
            return gone
        if not gone:
            return 0
        old = self._ends_base
        self._ends_base = self._ends[gone - 1]
        del self._ends[:gone]
        return self._ends_base - old

    def _matches(self, line: str) -> bool:
        return self._pattern in (line if self._match_case else line.lower())

    def set_filter(self, pattern: str) -> None:
        """Shows only lines that hold ``pattern``; capitals in it make the search exact."""
        self._pattern = pattern
        self._match_case = pattern != pattern.lower()
        self._rebuild()

    def set_wrap(self, width: int) -> None:
        """Wraps at ``width`` cells; 0 does not wrap."""
        if width != self._wrap_width:
            self._wrap_width = max(0, width)
            self._rebuild()

    def _rebuild(self) -> None:
        self._view, self._ends, self._ends_base, self.widest = [], [], 0, 0
        for offset, line in enumerate(self._lines):
            self._add_to_view(self.dropped + offset, line)

    def clear(self) -> None:
        """Forgets all lines and the count of dropped ones."""
        self._lines, self._chars, self.dropped = [], 0, 0
        self._rebuild()

    def line(self, index: int) -> str:
        """A line of the view by its place in the view."""
        return self._lines[self._view[index] - self.dropped] if self._pattern else self._lines[index]

    def at_row(self, row: int) -> tuple[int, int] | None:
        """Place in the view and part of the line (0, 1, … when wrapped) at a row; None outside."""
        if not 0 <= row < self.rows:
            return None
        if not self._wrap_width:
            return row, 0
        index = bisect_right(self._ends, row + self._ends_base)
        first = self._ends[index - 1] if index else self._ends_base
        return index, row + self._ends_base - first

    def number_at(self, row: int) -> int | None:
        """The number, since the beginning, of the line at a row; None outside."""
        place = self.at_row(row)
        if place is None:
            return None
        return self._view[place[0]] if self._pattern else self.dropped + place[0]

    def row_of(self, number: int) -> int:
        """First row of a line by its number since the beginning; of the next shown one if it is hidden."""
        index = bisect_left(self._view, number) if self._pattern else max(0, number - self.dropped)
        if not self._wrap_width or not index:
            return index
        return self._ends[min(index, len(self._ends)) - 1] - self._ends_base if self._ends else 0

    def row_text(self, row: int) -> str | None:
        """What stands in a row: the whole line, or its part when wrapped; None outside."""
        place = self.at_row(row)
        if place is None:
            return None
        line = self.line(place[0])
        if not self._wrap_width:
            return line
        if line.isascii():
            start = place[1] * self._wrap_width
            return line[start : start + self._wrap_width]
        parts = chop_cells(line, self._wrap_width)
        return parts[place[1]] if place[1] < len(parts) else ""

    def lines(self) -> list[str]:
        """All lines of the view."""
        return [self.line(index) for index in range(self.shown)]
