"""A plan's changes are the difference of two commands."""

from __future__ import annotations

from dflash_backend.control.argv_diff import changes_between, options_of
from dflash_backend.control.contract import Change

OLD = [
    "/venv/bin/python",
    "-m",
    "sglang.launch_server",
    "--port",
    "30000",
    "--enable-metrics",
    "--lora",
    "a",
    "b",
]


def test_options_are_read_as_launch_server_reads_them() -> None:
    assert options_of([*OLD, "--x=1=2", "--neg", "-1"]) == {
        "program": "/venv/bin/python -m sglang.launch_server",
        "port": "30000",
        "enable-metrics": "set",
        "lora": "a b",
        "x": "1=2",
        "neg": "-1",
    }


def test_changed_added_and_removed_options_are_told_and_equal_ones_are_not() -> None:
    new = [
        "/venv/bin/python",
        "-m",
        "sglang.launch_server",
        "--port",
        "30001",
        "--enable-metrics",
        "--tp",
        "8",
    ]
    assert changes_between(OLD, new) == (
        Change(name="port", before="30000", after="30001"),
        Change(name="tp", before=None, after="8"),
        Change(name="lora", before="a b", after=None),
    )
    assert changes_between(OLD, OLD) == ()


def test_without_a_running_server_everything_is_new() -> None:
    assert all(change.before is None for change in changes_between(None, OLD))
    assert len(changes_between(None, OLD)) == 4
