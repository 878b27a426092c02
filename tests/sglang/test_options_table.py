"""The table of launch options reproduces what the releases print as their help."""

from pathlib import Path

import pytest

from dflash_backend.sglang.options import option_table

HELP = Path(__file__).parent.parent / "data" / "help_options"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.14", "0.5.23"])
def test_the_table_lists_exactly_the_options_of_the_release_s_own_help(release):
    printed = set((HELP / f"sglang-{release}.txt").read_text().split())
    options = option_table().at(release)
    shown = {name for name, option in options.items() if not option.hidden}
    shown |= {f"no-{name}" for name, option in options.items() if option.kind == "toggle"}
    assert shown == printed


@pytest.mark.parametrize(
    ("name", "release", "spelling"),
    [
        ("speculative-draft-window-size", "0.5.11", ("speculative-dflash-draft-window-size", None)),
        ("speculative-draft-window-size", "0.5.12", ("speculative-draft-window-size", None)),
        ("speculative-dflash-draft-window-size", "0.5.23", ("speculative-draft-window-size", None)),
        ("cuda-graph-max-bs-decode", "0.5.13", ("cuda-graph-max-bs", None)),
        ("cuda-graph-max-bs", "0.5.23", ("cuda-graph-max-bs-decode", None)),
        ("disable-piecewise-cuda-graph", "0.5.19", ("disable-piecewise-cuda-graph", None)),
        ("disable-piecewise-cuda-graph", "0.5.20", ("cuda-graph-backend-prefill", "disabled")),
        ("tensor-parallel-size", "0.5.23", ("tensor-parallel-size", None)),
        ("speculative-draft-sink-size", "0.5.20", None),
        ("no-such-option", "0.5.20", None),
    ],
)
def test_renamed_options_are_followed_in_both_directions(name, release, spelling):
    assert option_table().spelling(name, release) == spelling


def test_a_value_that_older_releases_said_by_a_bare_flag():
    table = option_table()
    assert (
        table.flag_for("cuda-graph-backend-prefill", "disabled", "0.5.11") == "disable-piecewise-cuda-graph"
    )
    assert table.flag_for("cuda-graph-backend-prefill", "disabled", "0.5.14") is None
    assert table.flag_for("cuda-graph-backend-prefill", "full", "0.5.11") is None


def test_renames_never_change_what_an_option_sets():
    table = option_table()
    for release in table.releases:
        here = table.at(release)
        for name in table.names():
            found = table.spelling(name, release)
            if found is None or found[0] == name:
                continue
            fields = {segment.field for segment in table.history(name)}
            spelled = {segment.field for segment in table.history(found[0])}
            assert fields & spelled, (release, name, found)
            assert found[0] in here


def test_nearest_names_are_offered_and_far_ones_are_not():
    table = option_table()
    assert table.nearest("mem-fractoin-static", "0.5.14") == "mem-fraction-static"
    assert table.nearest("qqqqqqqq", "0.5.14") is None
