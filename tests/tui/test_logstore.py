"""Lines of a log in bounded memory: what is kept, counted, filtered and wrapped."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from dflash_console.tui.logstore import LogStore, severity
from dflash_console.tui.safetext import clean, fit, to_ascii, width_of

words = st.text(st.sampled_from("ab日\x1b[]/x "), max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(st.lists(words, max_size=12), max_size=12),
    limit=st.integers(1, 15),
    pattern=st.sampled_from(["", "a", "B", "日"]),
    wrap=st.integers(0, 7).filter(lambda n: n != 1),
)
def test_the_view_is_what_a_plain_list_would_show(
    batches: list[list[str]], limit: int, pattern: str, wrap: int
) -> None:
    store = LogStore(max_lines=limit)
    store.set_filter(pattern)
    store.set_wrap(wrap)
    everything: list[str] = []
    lost = 0
    for batch in batches:
        everything += map(clean, batch)
        lost += store.append(batch)
    kept = everything[-limit:]
    needle = pattern if pattern != pattern.lower() else pattern.lower()
    expected = [line for line in kept if needle in (line if pattern != pattern.lower() else line.lower())]
    assert store.lines() == expected
    assert store.dropped == max(0, len(everything) - limit)
    assert store.total == len(everything)
    assert store.shown == len(expected)
    seen = [store.at_row(row) for row in range(store.rows)]
    for row, place in enumerate(seen):
        number = store.number_at(row)
        assert number is not None
        assert place is not None
        assert clean(everything[number]) == store.line(place[0])
        assert store.row_of(number) == row - place[1]
    assert store.number_at(store.rows) is None
    assert None not in seen
    assert store.at_row(store.rows) is None
    assert [place[0] for place in seen if place and place[1] == 0] == list(range(len(expected)))
    text = [
        "".join(store.row_text(row) or "" for row in range(store.rows) if seen[row][0] == i)  # type: ignore[index]
        for i in range(len(expected))
    ]
    assert text == expected
    if wrap:
        assert all(cell_len(store.row_text(row) or "") <= wrap for row in range(store.rows))
    assert lost >= 0


def test_memory_is_bounded_by_characters_too() -> None:
    store = LogStore(max_lines=1000, max_chars=50_000)
    for _ in range(20):
        store.append(["x" * 9_000])
    assert sum(map(len, store.lines())) <= 50_000
    assert store.dropped == 15


def test_a_huge_batch_costs_only_what_can_be_kept() -> None:
    store = LogStore(max_lines=100)
    store.append([f"line {i}" for i in range(250_000)])
    assert store.lines()[0] == "line 249900"
    assert store.dropped == 249_900


def test_a_megabyte_line_is_cut() -> None:
    store = LogStore()
    store.append(["y" * 1_000_000])
    assert len(store.line(0)) <= 16_384
    assert store.line(0).endswith("…")


def test_severity_sees_errors_and_not_words_that_hold_them() -> None:
    assert severity("[TP0] torch.OutOfMemoryError: CUDA out of memory") == "bad"
    assert severity("Traceback (most recent call last):") == "bad"
    assert severity("WARNING: deprecated flag") == "warn"
    assert severity("terror and mirrors, 0 errors") == "text"


@given(st.text(max_size=60), st.integers(0, 40), st.sampled_from(["left", "right", "center"]))
def test_fit_is_exact(text: str, width: int, align: str) -> None:
    safe = clean(text)
    assert width_of(fit(safe, width, align)) == width  # type: ignore[arg-type]


@given(st.text(max_size=60))
def test_ascii_has_the_same_width(text: str) -> None:
    safe = clean(text)
    plain = to_ascii(safe)
    assert plain.isascii()
    assert plain.isprintable()
    assert len(plain) == cell_len(safe)


def test_a_line_that_the_filter_hides_has_the_place_of_the_next_one_shown() -> None:
    store = LogStore()
    store.append(["a0", "b1", "a2", "b3", "a4"])
    store.set_filter("a")
    assert [store.row_of(number) for number in range(6)] == [0, 1, 1, 2, 2, 3]
    store.set_wrap(1)
    assert [store.row_of(number) for number in range(6)] == [0, 2, 2, 4, 4, 6]
