"""One-line bars of the frame: the header and the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from dflash_console.tui.look import Look
from dflash_console.tui.safetext import Pieces, clean, fit, width_of
from dflash_console.tui.widgets.grid import fit_pieces


class Line(Widget):
    """One line: pieces on the left, pieces on the right; the left gives way."""

    DEFAULT_CSS = """
    Line { height: 1; padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._left: Pieces = ()
        self._right: Pieces = ()
        self._look: Look | None = None

    def show(self, left: Pieces, right: Pieces = ()) -> None:
        """Shows other pieces; does nothing when they are the same."""
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    @property
    def plain(self) -> str:
        """What is shown, for tests and for copying."""
        return "".join(text for text, _ in (*self._left, *self._right))

    def render_line(self, y: int) -> Strip:
        """The line."""
        width = self.size.width
        if y:
            return Strip.blank(width, self.rich_style)
        if self._look is None:
            self._look = Look(self.app)
        taken = min(width, sum(width_of(clean(text)) for text, _ in self._right))
        pieces = fit_pieces(self._left, width - taken) + fit_pieces(self._right, taken, "right")
        base = self.rich_style
        return Strip([Segment(text, base + self._look.rich(role)) for text, role in pieces if text], width)


@dataclass(frozen=True, slots=True)
class Hint:
    """One key of the key bar; ``enabled`` is only how it looks, pressing it says why."""

    action: str
    key: str
    title: str
    enabled: bool = True


class KeyBar(Widget):
    """The keys that work here, as many as fit; the last two always stay. Can be clicked."""

    DEFAULT_CSS = """
    KeyBar { height: 1; padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id)
        self._hints: tuple[Hint, ...] = ()
        self._look: Look | None = None

    @property
    def hints(self) -> tuple[Hint, ...]:
        """All hints, those that do not fit as well."""
        return self._hints

    def show(self, hints: Sequence[Hint]) -> None:
        """Shows other hints; does nothing when they are the same."""
        if tuple(hints) != self._hints:
            self._hints = tuple(hints)
            self.refresh()

    def fitting(self, width: int) -> list[tuple[int, Hint]]:
        """The hints that fit, with their x; hints in the middle give way first, from the right."""
        separator = 3

        def cells(hint: Hint) -> int:
            return width_of(hint.key) + 1 + width_of(hint.title)

        kept = list(self._hints)
        while len(kept) > 1 and sum(map(cells, kept)) + separator * (len(kept) - 1) > width:
            kept.pop(-3 if len(kept) > 2 else 0)
        result, x = [], 0
        for hint in kept:
            result.append((x, hint))
            x += cells(hint) + separator
        return result

    def render_line(self, y: int) -> Strip:
        """The line of keys."""
        width, base = self.size.width, self.rich_style
        if y:
            return Strip.blank(width, base)
        if self._look is None:
            self._look = Look(self.app)
        look = self._look
        segments: list[Segment] = []
        for x, hint in self.fitting(width):
            if x:
                segments.append(Segment(" · ", base + look.rich("faint")))
            key, title = ("accent", "text") if hint.enabled else ("faint", "faint")
            segments.append(Segment(fit(clean(hint.key), width_of(hint.key)), base + look.rich(key)))
            segments.append(Segment(" " + clean(hint.title), base + look.rich(title)))
        return Strip(segments).adjust_cell_length(width, base)

    async def on_click(self, event: events.Click) -> None:
        """Runs the action under the mouse."""
        x = event.x - self.styles.padding.left
        for start, hint in self.fitting(self.size.width):
            if start <= x < start + width_of(hint.key) + 1 + width_of(hint.title):
                await self.screen.run_action(f"act('{hint.action}')")
                return
