"""Real SGLang with the plugin: output as without speculation, drafts as the drafter declares.

float32 and greedy on a CPU, so outputs must be equal token for token. Each server is started once and asked
everything (conversation.py); the tests look at the answers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams, WindowMode
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, TARGET
from dflash_sglang import releases
from plugin.conversation import NEW, OPTIONS, POOL, PROBE_MIN, PROBE_MIN_BOUNDED, Answers, hold, measured
from rigs.sglang_cpu.rig import SglangRig

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

WINDOW, BLOCK = 256, 16
V1, V1_LAST, V2 = "0.5.11", "0.5.13.post1", "0.5.14"
WINDOW_FLAG = {V1: "--speculative-dflash-draft-window-size", V1_LAST: "--speculative-draft-window-size"}
WITH_FLAG = ("clamped", "compact")


@pytest.fixture(scope="module")
def served(plugin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``served(release, mode)``: the answers of that server; started at the first call."""
    folder = tmp_path_factory.mktemp("served")

    @cache
    def answers(release: str, mode: str) -> Answers:
        probe = folder / f"{release}-{mode}.probe"
        environment = {"PYTHONPATH": str(plugin_folder), "CPU_RIG_PROBE": str(probe)}
        bounded = mode in WITH_FLAG
        environment["CPU_RIG_PROBE_MIN"] = str(PROBE_MIN_BOUNDED if bounded else PROBE_MIN)
        environment["DFLASH_SGLANG_WINDOWS"] = "off" if mode in ("ignored", "clamped") else "on"
        more = list(OPTIONS)
        if bounded:
            more += [WINDOW_FLAG[release], str(WINDOW)]
        with SglangRig(release).serve(
            folder / f"{release}-{mode}.log",
            target=TARGET,
            drafter=None if mode == "none" else DRAFTER,
            environment=environment,
            tokens=POOL,
            more=more,
        ) as server:
            return hold(server, probe, whole=mode in ("none", "honoured"))

    return answers


@pytest.mark.parametrize(
    ("release", "mode"),
    [
        (V1, "honoured"),
        (V1, "ignored"),
        (V1, "clamped"),
        (V1, "compact"),
        (V1_LAST, "honoured"),
        (V2, "honoured"),
    ],
)
def test_every_output_is_that_of_the_server_without_speculation(served, release, mode):
    plain = served(V2 if release == V2 else V1, "none")
    answers = served(release, mode)
    for situation, outputs in answers.outputs.items():
        assert outputs == plain.outputs[situation], situation


@pytest.mark.parametrize(("release", "mode"), [(V1, "honoured"), (V2, "honoured")])
def test_the_conversation_went_through_cache_chunks_and_retraction(served, release, mode):
    answers = served(release, mode)
    assert all(answer["meta_info"]["cached_tokens"] >= 1000 for answer in answers.again)
    assert answers.longer[0]["meta_info"]["cached_tokens"] >= 1000
    assert "Retract requests" in answers.log
    assert answers.log.count("#new-token: 256") > 3, "prompts longer than a chunk came in chunks"


@pytest.mark.parametrize(("release", "mode"), [(V1, "honoured"), (V2, "honoured")])
def test_an_abort_ends_one_request_and_no_other(served, release, mode):
    aborted, plain = served(release, mode).aborted, served(release, "none").aborted
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
    short = min(len(aborted["output_ids"]), len(plain["output_ids"]))
    assert aborted["output_ids"][:short] == plain["output_ids"][:short]


def test_the_plugin_makes_an_old_sglang_draft_like_one_that_knows_windows(served):
    """The point of it all: same accept lengths as 0.5.14, prompt by prompt."""
    assert served(V1, "honoured").steps == served(V2, "honoured").steps
    assert served(V1_LAST, "honoured").steps == served(V2, "honoured").steps
    assert sum(served(V1, "ignored").steps) > 2 * sum(served(V1, "honoured").steps)
    assert sum(served(V1, "clamped").steps) > 2 * sum(served(V1, "honoured").steps)


def engine_run(mode: WindowMode, window: int | None = None) -> tuple[list[list[int]], list[int]]:
    """Output tokens and verify steps of the reference engine on the measured prompts."""
    engine = load_engine(
        EngineConfig(TARGET, DRAFTER, algorithm=Algorithm.DFLASH, window_mode=mode, window_size=window)
    )
    outputs: dict[str, list[int]] = {}
    steps: dict[str, int] = {}
    for number, prompt in enumerate(measured()):
        name = str(number)
        outputs[name], steps[name] = [], 0
        engine.add(Request(name, prompt, SamplingParams(max_new_tokens=NEW, ignore_eos=True)))
        while engine.has_work:
            for out in engine.step().outputs:
                outputs[name] += out.token_ids
                steps[name] += out.accepted_drafts is not None
    return list(outputs.values()), list(steps.values())


@pytest.mark.parametrize(
    ("release", "mode", "engine_mode"),
    [
        (V1, "honoured", WindowMode.DECLARED),
        (V2, "honoured", WindowMode.DECLARED),
        (V1, "ignored", WindowMode.IGNORED),
        (V1, "clamped", WindowMode.CLAMPED),
    ],
)
def test_the_reference_engine_accepts_as_much_in_every_window_mode(served, release, mode, engine_mode):
    outputs, steps = engine_run(engine_mode, WINDOW if engine_mode is WindowMode.CLAMPED else None)
    assert outputs == served(release, mode).outputs["alone"]
    assert steps == served(release, mode).steps


def first_and_last(probe: dict[str, Any], causal: bool, window: int | None) -> list[list[int]]:
    """What each row of a probed block should see."""
    cached, rows = probe["cached"], probe["rows"]
    last = [cached + row if causal else cached + rows - 1 for row in range(rows)]
    return [[0 if window is None else max(0, cached + row - window + 1), last[row]] for row in range(rows)]


@pytest.mark.parametrize("release", [V1, V1_LAST, V2])
def test_a_token_inside_a_layers_window_changes_its_draft_and_one_outside_cannot(served, release):
    probes = {probe["layer"]: probe for probe in served(release, "honoured").probes}
    assert sorted(probes) == [0, 1, 2]
    for layer, probe in probes.items():
        assert probe["cached"] > 2 * WINDOW
        assert probe["rows"] == BLOCK
        sliding = layer < 2
        assert probe["seen"] == first_and_last(probe, sliding, WINDOW if sliding else None)
        assert probe["holes"] == 0


def test_without_the_plugin_every_layer_sees_everything_both_ways(served):
    for probe in served(V1, "ignored").probes:
        assert probe["seen"] == first_and_last(probe, causal=False, window=None)


def test_the_window_flag_alone_bounds_every_layer_and_stays_non_causal(served):
    probes = served(V1, "clamped").probes
    assert len(probes) == 3
    for probe in probes:
        assert probe["cached"] == WINDOW
        assert probe["seen"] == first_and_last(probe, causal=False, window=None)


def test_with_the_compact_cache_layers_keep_their_windows_inside_it(served):
    probes = {probe["layer"]: probe for probe in served(V1, "compact").probes}
    for layer, probe in probes.items():
        assert probe["cached"] == WINDOW
        sliding = layer < 2
        assert probe["seen"] == first_and_last(probe, sliding, WINDOW if sliding else None)
    assert sum(served(V1, "compact").steps) < sum(served(V1, "clamped").steps) / 2


@pytest.mark.parametrize(
    ("release", "mode", "said", "cached", "layers"),
    [
        (V1, "honoured", "patched", None, [(256, True), (256, True), (None, False)]),
        (V1, "compact", "patched", 256, [(256, True), (256, True), (None, False)]),
        (V1, "ignored", "off", None, [(None, False)] * 3),
        (V1, "clamped", "off", 256, [(None, False)] * 3),
        (V1_LAST, "honoured", "patched", None, [(256, True), (256, True), (None, False)]),
        (V2, "honoured", "verified", None, [(256, True), (256, True), (None, False)]),
    ],
)
def test_log_and_server_info_say_what_was_hooked_and_what_each_layer_attends_to(
    served, release, mode, said, cached, layers
):
    answers = served(release, mode)
    told = answers.report
    assert told is not None
    assert told == answers.logged
    assert (told["mode"], told["sglang"], told["cached"]) == (said, release, cached)
    assert [(layer["attended"], layer["causal"]) for layer in told["layers"]] == layers
    assert [layer["declared"] for layer in told["layers"]] == [256, 256, None]
    names = [hook["name"] for hook in told["hooks"]]
    if said != "off":
        assert sorted(names) == sorted(releases.hooked(release))
    assert all(len(hook["fingerprint"]) == 16 for hook in told["hooks"] + told["sources"])


def test_a_server_without_a_drafter_is_left_alone_and_says_so(served):
    assert served(V1, "none").report["mode"] == "idle"
    assert served(V1, "none").logged is None
