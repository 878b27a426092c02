"""One server's snapshot from what is known: nothing stale passes for fresh, nothing unknown for known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_backend.core.inventory import ServerConfig
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.core.samples import (
    EffectiveSettings,
    GpuProcess,
    GpuSample,
    HostSample,
    RunStatus,
    ServerFigures,
    ServerSnapshot,
    Snapshot,
)
from dflash_backend.core.states import ServerState
from dflash_backend.telemetry.compose import Known, Tuning, compose, tuning, tuning_of_text
from dflash_backend.telemetry.derive import Derived
from dflash_backend.telemetry.history import Chronicle

NOW = 1000.0
SERVER = ServerConfig(name="s", host="h", port=30000, profile="quiet")
RUN = RunStatus(
    run_id="r",
    server="s",
    folder="/r",
    manager="setsid",
    alive=True,
    profile="fast",
    rss_mib=12.5,
    profile_toml='algorithm = "DDTREE"\nbudget = 8\ntopk = 4\nwindow = "off"',
    started_at=NOW - 50,
)
GPUS = tuple(
    GpuSample(index=i, name="G", memory_used_mib=10.0 * i, processes=(GpuProcess(pid=100 + i),))
    for i in range(3)
)
SAMPLE = HostSample(host="h", at=NOW - 1, gpus=GPUS, gpu_source="nvml", runs=(RUN,), listening={30000: 102})
FIGURES = ServerFigures(server="s", at=NOW - 0.5, decode_tok_s=90.0, running=2)
BASE = Known(
    server=SERVER,
    derived=Derived(state=ServerState.READY),
    now=NOW,
    sample=SAMPLE,
    run=RUN,
    figures=FIGURES,
    settings=EffectiveSettings(algorithm=Algorithm.DDTREE, budget=16),
    profile=Profile(name="quiet", target="/m", algorithm=Algorithm.DFLASH, window=77),
    last_seen=NOW - 0.2,
)


def in_state(state: ServerState, **changes: object) -> ServerSnapshot:
    return compose(replace(BASE, derived=Derived(state=state), **changes))  # type: ignore[arg-type]


def test_the_running_server_beats_what_was_asked_for() -> None:
    seen = compose(BASE)
    assert (seen.profile, seen.algorithm, seen.window, seen.budget, seen.topk) == (
        "fast", Algorithm.DDTREE, "off", 16, 4,
    )  # fmt: skip
    assert seen.figures == FIGURES
    assert seen.rss_mib == 12.5
    assert seen.at == NOW - 0.5


@pytest.mark.parametrize("state", [ServerState.UNREACHABLE, ServerState.UNKNOWN])
def test_what_cannot_be_seen_shows_no_figures_and_its_age(state: ServerState) -> None:
    seen = in_state(state, sample=replace(SAMPLE, at=NOW - 240), last_seen=NOW - 239)
    assert seen.figures is None
    assert seen.gpus == ()
    assert seen.rss_mib is None
    assert seen.at == NOW - 239
    # What it was launched with stays known.
    assert (seen.profile, seen.budget) == ("fast", 8)


def test_old_figures_are_left_out() -> None:
    assert compose(replace(BASE, figures=replace(FIGURES, at=NOW - 60))).figures is None


@pytest.mark.parametrize("state", [ServerState.STOPPED, ServerState.FAILED])
def test_a_server_that_is_over_has_no_figures_and_no_memory(state: ServerState) -> None:
    seen = in_state(state, run=replace(RUN, alive=False))
    assert (seen.figures, seen.settings, seen.rss_mib) == (None, None, None)
    assert seen.gpus == GPUS


def test_never_started_shows_what_would_be() -> None:
    seen = in_state(ServerState.STOPPED, run=None, settings=None)
    assert (seen.profile, seen.algorithm, seen.window) == ("quiet", Algorithm.DFLASH, 77)


def test_a_foreign_server_is_not_given_our_profile() -> None:
    seen = in_state(ServerState.FOREIGN, run=replace(RUN, alive=False), settings=None)
    assert (seen.profile, seen.algorithm, seen.run) == (None, None, None)
    assert [gpu.index for gpu in seen.gpus] == [2]  # the one that the listener holds


def test_gpus_are_those_of_the_run_or_all_with_a_note() -> None:
    own = compose(replace(BASE, run=replace(RUN, gpus=(1,))))
    assert [gpu.index for gpu in own.gpus] == [1]
    assert own.gpu_note == ""
    everything = compose(BASE)
    assert everything.gpus == GPUS
    assert "cannot be seen" in everything.gpu_note
    none = compose(replace(BASE, sample=replace(SAMPLE, gpus=(), gpu_note="no NVIDIA driver here")))
    assert (none.gpus, none.gpu_note) == ((), "no NVIDIA driver here")


def test_nothing_ever_read_has_no_age() -> None:
    seen = in_state(ServerState.UNKNOWN, sample=None, run=None, figures=None, settings=None, last_seen=None)
    assert seen.at is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Tuning()),
        ("not toml =", Tuning()),
        ('target = "/m"', Tuning(algorithm=Algorithm.NONE, window="config")),
        ('algorithm = "DFLASH"\nwindow = 5', Tuning(algorithm=Algorithm.DFLASH, window=5)),
        ('algorithm = "ODD"\nbudget = true\ntopk = "x"', Tuning(algorithm=Algorithm.NONE, window="config")),
    ],
)
def test_a_profile_text_is_read_as_far_as_it_can_be(text: str, expected: Tuning) -> None:
    assert tuning_of_text(text) == expected


def test_figures_of_another_algorithm_are_not_shown() -> None:
    asked = Tuning(algorithm=Algorithm.DDTREE, window=5, budget=8, topk=4)
    assert tuning(EffectiveSettings(algorithm=Algorithm.NONE), asked) == Tuning(algorithm=Algorithm.NONE)
    assert tuning(EffectiveSettings(algorithm=Algorithm.DFLASH), asked) == Tuning(
        algorithm=Algorithm.DFLASH, window=5
    )
    assert tuning(None, asked) == asked


def test_history_marks_starts_profiles_settings_and_ends() -> None:
    chronicle = Chronicle()

    def add(at: float, **changes: object) -> None:
        server = replace(compose(BASE), **changes)  # type: ignore[arg-type]
        chronicle.add(Snapshot(at=at, servers=(server,)))

    stopped = {"state": ServerState.STOPPED, "run": None, "settings": None, "figures": None}
    add(NOW, **stopped)
    add(NOW + 1, state=ServerState.STARTING)
    add(NOW + 2)
    add(NOW + 3, settings=EffectiveSettings(algorithm=Algorithm.DDTREE, budget=32))
    add(NOW + 4, state=ServerState.STOPPED, run=replace(RUN, alive=False, exited_at=NOW + 3.5), settings=None)
    add(NOW + 5, run=replace(RUN, run_id="r2", profile="slow", started_at=NOW + 5))
    marks = chronicle.history.marks("s", since=0)
    assert [(mark.at, mark.text) for mark in marks] == [
        (NOW - 50, "start fast"),
        (NOW + 2, "ready"),
        (NOW + 3, "budget 16 → 32"),
        (NOW + 3.5, "stopped"),
        (NOW + 5, "profile fast → slow"),
    ]


def test_history_is_one_sample_a_second_with_gaps_and_a_sum_of_gpu_memory() -> None:
    chronicle = Chronicle()
    for step in range(8):
        server = compose(BASE) if step != 4 else replace(compose(BASE), figures=None, gpus=())
        chronicle.add(Snapshot(at=NOW + step * 0.5, servers=(server,)))
    rate = chronicle.history.series("s", "decode_tok_s", since=0, points=99)
    assert rate.times == (NOW, NOW + 1, NOW + 2, NOW + 3)
    assert rate.values == (90.0, 90.0, None, 90.0)
    memory = chronicle.history.series("s", "gpu_memory_mib", since=0, points=99)
    assert memory.values == (30.0, 30.0, None, 30.0)
    one = chronicle.history.series("s", "gpu_memory_mib", since=0, points=99, gpu=2)
    assert one.values == (20.0, 20.0, None, 20.0)
