"""The line chart as text: braille dots, or ASCII, in cells with roles. Pure; knows nothing of Textual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_console.tui.safetext import Piece, clean, fit, width_of

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: ``times`` ascending, ``values`` may hold None or non-finite numbers, which are gaps."""

    times: Sequence[float]
    values: Sequence[float | None]
    role: str = "accent"


@dataclass(frozen=True, slots=True)
class Flag:
    """A moment on the time axis and its words."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is drawn around the lines. Times are seconds, sizes cells."""

    width: int
    height: int
    start: float
    end: float
    low: float = 0.0
    high: float | None = None
    """Top of the axis; None: the next nice number above the data."""
    label_width: int = 6
    time_axis: bool = True
    flag_row: bool = False
    """Keeps the first row for flags even when there are none, so that the chart does not move."""
    ascii_only: bool = False
    gap_s: float = 5.0
    """Points further apart are not joined."""


def nice_ceiling(value: float) -> float:
    """The smallest round number that is not below ``value``; 1 for nothing."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in _NICE:
        if step * power >= value * 0.999999:
            return step * power
    return 10.0 * power


def tick_label(value: float, top: float) -> str:
    """An axis label with as many digits as the scale needs."""
    if top >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if top >= 10 and float(value).is_integer() else f"{value:.1f}"


def finite_points(line: Line, start: float, end: float) -> list[tuple[float, float | None]]:
    """The points inside the span; None where the line breaks."""
    result: list[tuple[float, float | None]] = []
    for at, value in zip(line.times, line.values, strict=False):
        if not (math.isfinite(at) and start <= at <= end):
            continue
        result.append((at, value if value is not None and math.isfinite(value) else None))
    return result


def render(lines: Sequence[Line], frame: Frame, flags: Sequence[Flag] = ()) -> list[list[Piece]]:
    """The chart as ``frame.height`` rows of pieces, each exactly ``frame.width`` cells wide.

    Any size from 0 up works: axes and labels are left out when there is no room for them.
    """
    width, height = max(0, frame.width), max(0, frame.height)
    if not width or not height:
        return [[] for _ in range(height)]
    label = frame.label_width if width >= frame.label_width + 8 else 0
    plot_width = width - (label + 1 if label else 0)
    flag_rows = 1 if frame.flag_row and height >= 4 else 0
    axis_rows = 1 if frame.time_axis and height - flag_rows >= 3 else 0
    rows = height - flag_rows - axis_rows
    span = frame.end - frame.start
    if not math.isfinite(span) or span <= 0:
        return [[(" " * width, "dim")] for _ in range(height)]

    data = [(finite_points(line, frame.start, frame.end), line.role) for line in lines]
    values = [value for points, _ in data for _, value in points if value is not None]
    low = frame.low
    high = frame.high if frame.high is not None else nice_ceiling(max(values, default=0.0))
    if not high > low:
        high = low + 1.0

    canvas = _AsciiCanvas(plot_width, rows) if frame.ascii_only else _BrailleCanvas(plot_width, rows)
    for points, role in data:
        canvas.draw(_columns(points, frame, canvas.columns), low, high, role)
    flag_columns = _flag_columns(flags, frame, plot_width)
    body = canvas.rows({column for column, _ in flag_columns}, ":" if frame.ascii_only else "╎")

    labels = _labels(rows, low, high) if label else {}
    result: list[list[Piece]] = []
    if flag_rows:
        text = _flag_line(flag_columns, plot_width)
        result.append([*([(" " * (label + 1), "dim")] if label else []), (text, "second")])
    for index, row in enumerate(body):
        if label:
            tick = labels.get(index)
            edge = "┤" if tick else "│"
            row = [(fit(tick or "", label, "right"), "dim"), (edge, "faint"), *row]
        result.append(row)
    if axis_rows:
        result.append(_time_axis(frame, label, plot_width))
    return result


def _labels(rows: int, low: float, high: float) -> dict[int, str]:
    labels = {0: tick_label(high, high)}
    if rows >= 2:
        labels[rows - 1] = tick_label(low, high)
    if rows >= 5 and rows % 2:
        labels[rows // 2] = tick_label((low + high) / 2, high)
    return labels


def _time_axis(frame: Frame, label: int, width: int) -> list[Piece]:
    span = frame.end - frame.start
    left, right = f"-{_span_text(span)}", "now"
    if width < len(left) + len(right) + 1:
        return [(" " * ((label + 1 if label else 0) + width), "dim")]
    line = left + " " * (width - len(left) - len(right)) + right
    middle = f"-{_span_text(span / 2)}"
    at = width // 2 - len(middle) // 2
    if width >= 3 * len(middle) + len(left) + len(right):
        line = line[:at] + middle + line[at + len(middle) :]
    return [*([(" " * (label + 1), "dim")] if label else []), (line, "dim")]


def _span_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:g} min" if (seconds / 60).is_integer() else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:g} h" if (seconds / 3600).is_integer() else f"{seconds / 3600:.1f} h"


def _flag_columns(flags: Sequence[Flag], frame: Frame, width: int) -> list[tuple[int, str]]:
    span = frame.end - frame.start
    return [
        (min(width - 1, int((flag.at - frame.start) / span * width)), clean(flag.text))
        for flag in sorted(flags, key=lambda f: f.at)
        if math.isfinite(flag.at) and frame.start <= flag.at <= frame.end
    ]


def _flag_line(columns: Sequence[tuple[int, str]], width: int) -> str:
    """The row of flags: each ``▼`` at its moment, its words beside it as far as there is room."""
    line = ""
    for index, (column, text) in enumerate(columns):
        used = width_of(line)
        if column < used:
            continue  # Two flags in one place: the later one has only its line.
        limit = columns[index + 1][0] if index + 1 < len(columns) else width
        words = f"▼ {text}"
        room = limit - column
        if width_of(words) > room and index + 1 == len(columns) and column >= width // 2:
            # Near the right edge the words stand on the left of their mark.
            words_left = f"{text} ▼"
            start = column + 1 - width_of(words_left)
            if start > used:
                line = fit(line, start) + words_left
                continue
        line = fit(line, column) + (words if width_of(words) <= room else fit(words, max(1, room)))
    return fit(line, width)


@dataclass(frozen=True, slots=True)
class _Column:
    """What happens to a line within one column of dots: first, lowest, highest, last value."""

    index: int
    first: float
    low: float
    high: float
    last: float
    joined: bool
    """True when it is joined to the column before."""


def _columns(points: Sequence[tuple[float, float | None]], frame: Frame, columns: int) -> list[_Column]:
    span = frame.end - frame.start
    # A bucket of the history may be wider than the usual distance between two samples.
    gap = max(frame.gap_s, 3.0 * span / max(1, columns))
    result: list[_Column] = []
    previous: float | None = None
    for at, value in points:
        if value is None:
            previous = None
            continue
        index = min(columns - 1, int((at - frame.start) / span * columns))
        joined = previous is not None and at - previous <= gap
        if result and result[-1].index == index and (joined or previous is None):
            old = result.pop()
            result.append(
                _Column(index, old.first, min(old.low, value), max(old.high, value), value, old.joined)
            )
        else:
            result.append(_Column(index, value, value, value, value, joined))
        previous = at
    return result


class _BrailleCanvas:
    """Two by four dots a cell."""

    def __init__(self, width: int, rows: int) -> None:
        self.width, self.height = width, rows
        self.columns = width * 2
        self._bits = [[0] * width for _ in range(rows)]
        self._roles = [[""] * width for _ in range(rows)]

    def _dot(self, x: int, y: int, role: str) -> None:
        row = self.height - 1 - y // 4
        self._bits[row][x // 2] |= _DOTS[x % 2][3 - y % 4]
        self._roles[row][x // 2] = role

    def draw(self, columns: Sequence[_Column], low: float, high: float, role: str) -> None:
        """Draws one line; values outside the axis are drawn at its edge."""
        top = self.height * 4 - 1

        def level(value: float) -> int:
            return round(max(0.0, min(1.0, (value - low) / (high - low))) * top)

        before: _Column | None = None
        for column in columns:
            bottom, peak = level(column.low), level(column.high)
            if before is not None and column.joined:
                self._join(before.index, level(before.last), column.index, level(column.first), role)
            for y in range(bottom, peak + 1):
                self._dot(column.index, y, role)
            before = column

    def _join(self, x0: int, y0: int, x1: int, y1: int, role: str) -> None:
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(1, steps):
            x = x0 + round((x1 - x0) * step / steps)
            self._dot(x, y0 + round((y1 - y0) * step / steps), role)

    def rows(self, marked: set[int], mark: str) -> list[list[Piece]]:
        """The cells as pieces; ``mark`` fills the empty cells of the marked columns."""
        result = []
        for bits, roles in zip(self._bits, self._roles, strict=True):
            cells = [
                (chr(0x2800 + bit), role) if bit else (mark, "second") if x in marked else (" ", "dim")
                for x, (bit, role) in enumerate(zip(bits, roles, strict=True))
            ]
            result.append(_merge(cells))
        return result


class _AsciiCanvas:
    """Three levels a cell: ``.`` ``-`` ``'``, and ``|`` where the line climbs through whole cells."""

    def __init__(self, width: int, rows: int) -> None:
        self.width, self.height = width, rows
        self.columns = width
        self._cells = [[" "] * width for _ in range(rows)]
        self._roles = [[""] * width for _ in range(rows)]

    def draw(self, columns: Sequence[_Column], low: float, high: float, role: str) -> None:
        """Draws one line; the distance to the column before is bridged upright."""
        top = self.height * 3 - 1

        def level(value: float) -> int:
            return round(max(0.0, min(1.0, (value - low) / (high - low))) * top)

        before: _Column | None = None
        for column in columns:
            bottom, peak = level(column.low), level(column.high)
            if before is not None and column.joined:
                last, first = level(before.last), level(column.first)
                for x in range(before.index + 1, column.index):
                    share = (x - before.index) / (column.index - before.index)
                    y = round(last + (first - last) * share)
                    self._put(x, y, y, role)
                if column.index == before.index + 1 and abs(first - last) > 3:
                    bottom, peak = min(bottom, last), max(peak, last)
            self._put(column.index, bottom, peak, role)
            before = column

    def _put(self, x: int, bottom: int, peak: int, role: str) -> None:
        for row in range(bottom // 3, peak // 3 + 1):
            y = self.height - 1 - row
            whole = bottom // 3 != peak // 3
            self._cells[y][x] = "|" if whole else ".-'"[peak % 3]
            self._roles[y][x] = role

    def rows(self, marked: set[int], mark: str) -> list[list[Piece]]:
        """The cells as pieces; ``mark`` fills the empty cells of the marked columns."""
        result = []
        for cells, roles in zip(self._cells, self._roles, strict=True):
            result.append(
                _merge(
                    [
                        (cell, role) if cell != " " else (mark, "second") if x in marked else (" ", "dim")
                        for x, (cell, role) in enumerate(zip(cells, roles, strict=True))
                    ]
                )
            )
        return result


def _merge(cells: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one role as one piece."""
    result: list[Piece] = []
    for text, role in cells:
        if result and result[-1][1] == role:
            result[-1] = (result[-1][0] + text, role)
        else:
            result.append((text, role))
    return result
