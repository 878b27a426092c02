"""The chart renderer: every size, gaps, odd numbers, flags, ASCII. No Textual needed."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_backend.telemetry.contract import Series
from dflash_console.tui.history import chart_end, total
from dflash_console.tui.plot import Flag, Frame, Line, nice_ceiling, render
from dflash_console.tui.safetext import width_of

anything = st.one_of(
    st.none(), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0])
)


def draw(values: list[float | None], **frame: object) -> list[str]:
    times = [float(i) for i in range(len(values))]
    base: dict[str, object] = {"width": 40, "height": 8, "start": 0.0, "end": max(1.0, float(len(values)))}
    rows = render([Line(times, values)], Frame(**{**base, **frame}))  # type: ignore[arg-type]
    return ["".join(text for text, _ in row) for row in rows]


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(anything, max_size=80),
    width=st.integers(0, 70),
    height=st.integers(0, 20),
    ascii_only=st.booleans(),
    flag_row=st.booleans(),
    flag_at=st.one_of(st.floats(), st.floats(0, 80)),
    flag_text=st.text(max_size=30),
)
def test_any_data_fills_any_size_exactly(
    values: list[float | None],
    width: int,
    height: int,
    ascii_only: bool,
    flag_row: bool,
    flag_at: float,
    flag_text: str,
) -> None:
    times = [float(i) for i in range(len(values))]
    frame = Frame(width=width, height=height, start=0.0, end=80.0, ascii_only=ascii_only, flag_row=flag_row)
    rows = render([Line(times, values), Line((), ())], frame, [Flag(flag_at, flag_text)])
    assert len(rows) == height
    assert all(sum(width_of(text) for text, _ in row) == width for row in rows)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_empty_one_point_and_constant(ascii_only: bool) -> None:
    blank = draw([], ascii_only=ascii_only, time_axis=False, label_width=0)
    assert not "".join(blank).strip("│┤ ")
    one = "".join(draw([5.0], ascii_only=ascii_only, time_axis=False))
    assert any(0x2800 < ord(c) <= 0x28FF for c in one) or "'" in one
    constant = draw([5.0] * 40, ascii_only=ascii_only, time_axis=False)
    used = [row for row in constant if any(0x2800 < ord(c) <= 0x28FF for c in row) or "'" in row]
    assert len(used) == 1


def test_a_line_at_zero_is_at_the_bottom_and_the_top_is_a_round_number() -> None:
    rows = draw([0.0] * 20 + [148.0] * 20, time_axis=False)
    assert rows[0].startswith("   150┤")
    assert rows[-1].startswith("     0┤")
    assert "⣀" in rows[-1]


def test_missing_values_are_a_gap() -> None:
    rows = draw([3.0] * 30 + [None] * 20 + [3.0] * 30, width=47, label_width=6, end=80.0, time_axis=False)
    line = next(row[7:] for row in rows if any(0x2800 < ord(c) <= 0x28FF for c in row))
    assert line[:14].strip()
    assert not line[16:24].strip()
    assert line[27:].strip()


def test_a_long_silence_is_not_joined() -> None:
    rows = render(
        [Line((0.0, 1.0, 60.0, 61.0), (1.0, 1.0, 5.0, 5.0))],
        Frame(width=41, height=8, start=0, end=62, time_axis=False, label_width=0),
    )
    dots = sum(text != " " for row in rows for piece, _ in row for text in piece)
    assert dots <= 6


def test_flags_stand_at_their_moment_with_their_words() -> None:
    rows = render(
        [Line((), ())], Frame(width=47, height=8, start=0, end=80, flag_row=True), [Flag(40.0, "B 8→16")]
    )
    first = "".join(text for text, _ in rows[0])
    assert first[7 + 20 :].startswith("▼ B 8→16")
    assert sum("╎" in "".join(text for text, _ in row) for row in rows) == 6


def test_the_label_column_never_changes_its_width() -> None:
    for top in (0.4, 7.0, 99.0, 148.2, 14_820.0, 1e7, 1e15):
        for row in draw([top] * 10, time_axis=False):
            assert row[6] in "│┤", row


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_nice_ceiling_is_not_below_and_not_far_above(value: float) -> None:
    top = nice_ceiling(value)
    assert value * 0.9999 <= top <= value * 2.01


def test_the_right_edge_moves_by_whole_columns() -> None:
    edges = {chart_end(1000.0 + i * 0.1, 600.0, 100) for i in range(60)}
    assert edges == {1002.0, 1008.0}


def test_total_does_not_jump_when_servers_are_read_at_different_moments() -> None:
    a = Series(name="decode_tok_s", times=tuple(float(i) for i in range(0, 60, 2)), values=(100.0,) * 30)
    b = Series(name="decode_tok_s", times=tuple(i + 0.9 for i in range(0, 60, 3)), values=(50.0,) * 20)
    line = total([a, b], 0.0, 60.0, 60)
    assert set(line.values[2:]) == {150.0}


def test_total_of_nothing_is_a_gap_not_zero() -> None:
    a = Series(name="decode_tok_s", times=(1.0, 2.0, 50.0), values=(10.0, None, math.inf))
    line = total([a, Series(name="decode_tok_s")], 0.0, 60.0, 60)
    assert line.values[1] == 10.0
    assert line.values[30] is None
    assert line.values[50] is None


def test_the_renderer_needs_no_textual() -> None:
    code = "import sys, dflash_console.tui.plot, dflash_console.tui.logstore; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
