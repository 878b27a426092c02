"""Servers that must not start: windows that cannot be honoured, or an SGLang that is not the one known.

The refusal comes while SGLang reads its arguments, before a process is started or a weight loaded; only what
depends on the draft runner comes later, in the scheduler.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dflash_engine.reference_pair import DRAFTER, TARGET
from rigs.sglang_cpu.rig import SglangRig

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

# What launch_server does first, for one drafter after another.
START = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
said = []
for arguments in json.loads(sys.argv[1]):
    try:
        prepare_server_args(arguments)
        said.append("")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""

SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "as it is": ({}, ""),
    "all layers full, window unused": ({"layer_types": [FULL] * 3}, ""),
    "no window at all": ({"layer_types": ..., "sliding_window": None, "use_sliding_window": False}, ""),
    "window switched off": ({"layer_types": ..., "use_sliding_window": False}, ""),
    "transformers fills in sliding layers": ({"layer_types": ..., "max_window_layers": 1}, ""),
    "transformers drops the window": ({"use_sliding_window": False}, "there is no sliding_window"),
    "transformers drops the window too": ({"use_sliding_window": ...}, "there is no sliding_window"),
    "transformers makes all layers full": ({"layer_types": ..., "max_window_layers": 28}, "no layer_types"),
    "transformers fills in a window": (
        {"sliding_window": ...},
        "has no sliding_window, but SGLang sees 4096",
    ),
    "window null": ({"sliding_window": None}, "there is no sliding_window"),
    "window of one": ({"sliding_window": 1}, "fewer than 2 tokens"),
    "too few layer types": ({"layer_types": [SLIDING]}, "num_hidden_layers"),
    "unknown layer type": ({"layer_types": [SLIDING, "chunked_attention", FULL]}, "'chunked_attention'"),
    "non-causal sliding layers": ({"is_causal": False}, "is_causal false, which layers [0, 1] would not"),
}


@pytest.fixture(scope="module")
def verdicts(plugin_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """What each release says to every case; asked of one interpreter."""

    def make(folder: Path, changes: dict[str, object]) -> Path:
        folder.mkdir()
        fields = json.loads((DRAFTER / "config.json").read_text()) | changes
        written = {name: value for name, value in fields.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(written))
        return folder

    def ask(release: str) -> dict[str, str]:
        rig = SglangRig(release).require()
        home = tmp_path_factory.mktemp("drafters")
        folders = [make(home / str(number), changes) for number, (changes, _) in enumerate(CASES.values())]
        commands = [rig.arguments(TARGET, 30000, drafter=folder) for folder in folders]
        environment = {"PYTHONPATH": str(plugin_folder)}
        said = rig.run(START, json.dumps(commands), environment=environment, timeout=300)
        return dict(zip(CASES, json.loads(said.splitlines()[-1]), strict=True))

    known: dict[str, dict[str, str]] = {}

    def verdict(release: str) -> dict[str, str]:
        if release not in known:
            known[release] = ask(release)
        return known[release]

    return verdict


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("release", ["0.5.11", "0.5.13.post1", "0.5.14"])
def test_a_drafter_is_served_as_declared_or_refused_with_the_field(verdicts, release, case):
    said = verdicts(release)[case]
    expected = CASES[case][1]
    if not expected:
        assert said == ""
        return
    assert expected in said
    if "WindowError" in said:  # else transformers itself refused the config, even earlier
        assert "dflash-sglang: DFLASH does not start: drafter config: " in said
        assert "DFLASH_SGLANG_WINDOWS=off serves without" in said


def test_the_whole_server_ends_with_the_reason(plugin_folder, drafter_with, tmp_path):
    log = SglangRig("0.5.11").refuses(
        tmp_path / "server.log",
        target=TARGET,
        drafter=drafter_with(sliding_window=None),
        environment={"PYTHONPATH": str(plugin_folder)},
    )
    assert "dflash-sglang: DFLASH does not start: drafter config: layer_types[0] is sliding_attention" in log
    assert "Initialized DFLASH draft runner" not in log


@pytest.mark.slow
def test_a_draft_backend_without_per_layer_windows_is_refused(plugin_folder, tmp_path):
    log = SglangRig("0.5.11").refuses(
        tmp_path / "server.log",
        target=TARGET,
        drafter=DRAFTER,
        environment={"PYTHONPATH": str(plugin_folder)},
        more=["--speculative-draft-attention-backend", "flashinfer"],
    )
    assert "the draft attention backend flashinfer of SGLang 0.5.11 has no per-layer windows" in log
    assert "--speculative-draft-attention-backend triton" in log


def unknown_release(folder: Path) -> Path:
    info = folder / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return folder


def test_on_an_unknown_sglang_dflash_is_refused_and_everything_else_starts(plugin_folder, tmp_path):
    rig = SglangRig("0.5.11").require()
    environment = {"PYTHONPATH": os.pathsep.join([str(unknown_release(tmp_path)), str(plugin_folder)])}
    commands = [rig.arguments(TARGET, 30000, drafter=DRAFTER), rig.arguments(TARGET, 30000)]
    with_dflash, without = json.loads(
        rig.run(START, json.dumps(commands), environment=environment).splitlines()[-1]
    )
    assert "SGLang 0.5.99 is not among the releases this plugin knows (0.5.11 to 0.5.23)" in with_dflash
    assert without == ""
    environment["DFLASH_SGLANG_WINDOWS"] = "off"
    assert json.loads(rig.run(START, json.dumps(commands), environment=environment).splitlines()[-1]) == [
        "",
        "",
    ]


@pytest.mark.slow
def test_kept_out_by_sglang_plugins_the_server_starts_without_it_and_shows_no_report(plugin_folder, tmp_path):
    """Nothing of the plugin runs then: that it is missing from /server_info is what the audit goes by."""
    with SglangRig("0.5.11").serve(
        tmp_path / "server.log",
        target=TARGET,
        drafter=DRAFTER,
        environment={"PYTHONPATH": str(plugin_folder), "SGLANG_PLUGINS": "cpu_rig_testbed"},
    ) as server:
        assert "dflash_sglang" not in server.get("/server_info")["internal_states"][0]
        assert "dflash-sglang" not in server.log_text()


HOOKED = """
import json, logging
logging.disable(logging.CRITICAL)
from sglang.srt.plugins import load_plugins
load_plugins()
from dflash_sglang import hooks
from sglang.srt.plugins.hook_registry import HookRegistry
state = hooks.STATE
missing = [name for name in state.hooked if name.replace(":", ".") not in HookRegistry._patched]
print(json.dumps([state.refusal, state.patches, missing, len(state.hooked)]))
"""


@pytest.mark.parametrize(
    ("release", "patches", "hooks"),
    [("0.5.11", True, 5), ("0.5.13.post1", True, 5), ("0.5.14", False, 3), ("0.5.23", False, 3)],
)
def test_every_hook_is_applied(plugin_folder, release, patches, hooks):
    rig = SglangRig(release).require()
    said = rig.run(HOOKED, environment={"PYTHONPATH": str(plugin_folder)})
    assert json.loads(said.splitlines()[-1]) == [None, patches, [], hooks]


@pytest.mark.slow
def test_on_the_newest_release_a_server_without_a_drafter_says_that_the_plugin_is_idle(
    plugin_folder, tmp_path
):
    with SglangRig("0.5.23").serve(
        tmp_path / "server.log", target=TARGET, environment={"PYTHONPATH": str(plugin_folder)}
    ) as server:
        told = server.get("/server_info")["internal_states"][0]["dflash_sglang"]
    assert (told["mode"], told["sglang"], told["layers"]) == ("idle", "0.5.23", [])
