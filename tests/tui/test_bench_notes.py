"""Notes of the bench screen wrap whatever text they are given."""

from __future__ import annotations

import pytest

from dflash_console.tui.benchrows import wrapped
from dflash_console.tui.safetext import width_of


@pytest.mark.parametrize(
    "text", ["", "   ", "x " * 200, " " * 500, "\x1b]0;" + "A" * 100_000, "\u202e" * 300]
)
@pytest.mark.parametrize("width", [0, 10, 72])
def test_any_text_wraps_into_harmless_lines(text: str, width: int) -> None:
    lines = wrapped((("note ", "accent"), (text, "dim")), width)
    assert lines
    assert lines[0][0] == ("note ", "accent")
    for line in lines:
        assert all("\x1b" not in piece and "\u202e" not in piece for piece, _ in line)
        if width >= 20 and len(lines) > 1:
            assert sum(width_of(piece) for piece, _ in line) <= width
