"""Whatever the host's program answers, the doctor has a finding for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.doctor.check import NAMES
from dflash_backend.doctor.findings import FLAGS, examine
from dflash_backend.sglang.options import option_table

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "version path venv system machine user copies package options options_error allowed others state gpus "
    "text other unread free_mib total_mib files_free writable systemd lingers who runs error where"
).split()
sections = st.dictionaries(st.sampled_from(KEYS), anything, max_size=8)


@given(st.dictionaries(st.sampled_from((*NAMES, "ports")), sections | anything) | anything)
def test_any_answer_gives_every_finding(answer: object) -> None:
    found = examine(answer, [30000, 30001])
    assert [finding.name for finding in found] == [*NAMES, "port 30000", "port 30001"]
    assert all(finding.text for finding in found)


@pytest.mark.parametrize("release", option_table().releases)
def test_each_release_knows_our_flags_but_those_it_came_before(release: str) -> None:
    has = sorted(option_table().at(release))
    answer = {
        "sglang": {"copies": [{"version": release, "where": "/v"}], "package": "/v/sglang", "options": has}
    }
    flags = next(finding for finding in examine(answer, []) if finding.name == "flags")
    assert flags.status == "ok", flags.text
    window = "dflash-draft-window" if release == "0.5.11" else "draft-window"
    assert f"--speculative-{window}-size" in flags.text
    assert f"{len(FLAGS)} of the {len(FLAGS)}" in flags.text


DISK = {"path": "/r", "free_mib": 1e6, "total_mib": 2e6, "files_free": 10**6, "writable": True}


@pytest.mark.parametrize(
    ("section", "change", "status"),
    [
        ("disk", {}, "ok"),
        ("disk", {"free_mib": 5000.0}, "warn"),
        ("disk", {"free_mib": 100.0}, "fail"),
        ("disk", {"files_free": 3}, "fail"),
        ("disk", {"files_free": None}, "ok"),
        ("disk", {"writable": False}, "fail"),
        ("services", {"systemd": "absent", "lingers": False}, "ok"),
        ("services", {"systemd": "silent", "state": "offline", "lingers": False}, "ok"),
        ("services", {"systemd": "answers", "state": "running", "lingers": False}, "warn"),
        ("services", {"systemd": "answers", "state": "degraded", "lingers": True}, "ok"),
        ("plugin", {"copies": [], "others": [], "allowed": None}, "warn"),
        ("plugin", {"copies": [{"version": "1", "where": "/v"}], "allowed": None}, "ok"),
        ("plugin", {"copies": [{"version": "1", "where": "/v"}], "allowed": "a, dflash_sglang"}, "ok"),
        ("plugin", {"copies": [{"version": "1", "where": "/v"}], "allowed": "other"}, "warn"),
        ("plugin", {"copies": [{"version": "1", "where": "/v"}] * 2, "allowed": None}, "warn"),
        ("gpus", {"state": "hangs", "text": "no answer"}, "fail"),
        ("gpus", {"error": "PermissionError"}, "unknown"),
    ],
)
def test_judgements(section: str, change: dict[str, Any], status: str) -> None:
    answer = {section: {**(DISK if section == "disk" else {}), **change}}
    found = next(finding for finding in examine(answer, []) if finding.name == section)
    assert found.status == status, found
    if status == "fail":
        assert found.next_step


def test_a_port_with_a_run_of_ours_is_fine() -> None:
    answer = {"ports": {"1": {"who": "pid 7 (python3)", "runs": ["20261130T000000Z-00000000"]}}}
    assert examine(answer, [1])[-1].status == "ok"
