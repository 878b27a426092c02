"""What the plugin decides on an installed SGLang: hook it, read it back, stay out, or let no DFLASH start."""

import json
import os

import pytest

from rigs.sglang_cpu.rig import SglangRig

pytestmark = pytest.mark.sglang

DECIDE = """
import json
from dflash_sglang import entry
state = entry.decide()
print(json.dumps({"release": state.release, "refusal": state.refusal, "off": state.off,
                  "known": bool(state.known), "patches": state.patches}))
"""


@pytest.fixture(scope="module")
def rig():
    return SglangRig("0.5.11").require()


def decide(rig, *folders, **environment):
    path = os.pathsep.join(str(folder) for folder in folders)
    return json.loads(rig.run(DECIDE, environment={"PYTHONPATH": path, **environment}).splitlines()[-1])


def distribution(folder, name, version, entry_points=""):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def altered_sglang(rig, folder, module, old, new):
    """SGLang as installed, by links, with one changed file."""
    origin = next(rig.home.glob("lib/python3*/site-packages/sglang"))
    parts = module.split("/")
    here, there = folder / "sglang", origin
    for part in parts:
        here.mkdir(parents=True, exist_ok=True)
        for item in there.iterdir():
            if item.name != part:
                (here / item.name).symlink_to(item)
        here, there = here / part, there / part
    text = there.read_text()
    assert old in text
    here.write_text(text.replace(old, new, 1))
    return folder


def test_on_a_release_without_windows_it_patches(rig, plugin_folder):
    state = decide(rig, plugin_folder)
    assert state == {"release": "0.5.11", "refusal": None, "off": False, "known": True, "patches": True}


def test_on_a_release_with_windows_it_only_reads_back(plugin_folder):
    state = decide(SglangRig("0.5.14").require(), plugin_folder)
    assert state == {"release": "0.5.14", "refusal": None, "off": False, "known": True, "patches": False}


@pytest.mark.parametrize("version", ["0.5.10", "0.5.24", "0.6.0", "0.5.14.dev3+g0123abc", "1.0"])
def test_on_any_other_release_nothing_is_hooked_and_dflash_is_refused(rig, plugin_folder, tmp_path, version):
    state = decide(rig, plugin_folder, distribution(tmp_path, "sglang", version))
    assert state["release"] == version
    assert not state["patches"]
    assert (
        f"SGLang {version} is not among the releases this plugin knows (0.5.11 to 0.5.23)" in state["refusal"]
    )


def test_the_switch_stays_out_of_the_way_on_any_release(rig, plugin_folder, tmp_path):
    assert decide(rig, plugin_folder, DFLASH_SGLANG_WINDOWS="off")["off"]
    state = decide(rig, plugin_folder, distribution(tmp_path, "sglang", "9.9"), DFLASH_SGLANG_WINDOWS="OFF")
    assert (state["off"], state["refusal"], state["known"]) == (True, None, False)


def test_a_misspelt_switch_is_refused_rather_than_guessed(rig, plugin_folder):
    assert "'of'; it takes on or off" in decide(rig, plugin_folder, DFLASH_SGLANG_WINDOWS="of")["refusal"]


@pytest.mark.parametrize(
    ("module", "old", "new", "says"),
    [
        (
            "srt/models/dflash.py",
            "self.scaling = head_dim**-0.5",
            "self.scaling = head_dim**-0.25",
            "sglang.srt.models.dflash:DFlashAttention.__init__: fingerprint",
        ),
        (
            "srt/models/dflash.py",
            "def __init__(self, config, layer_id: int) -> None:",
            "def __init__(self, config, layer_id: int, window: int = 0) -> None:",
            "__init__: takes (self, config, layer_id, window), expected (self, config, layer_id)",
        ),
        (
            "srt/layers/radix_attention.py",
            "self.sliding_window_size = sliding_window_size or -1",
            "self.sliding_window_size = -1",
            "sglang.srt.layers.radix_attention:RadixAttention.__init__: fingerprint",
        ),
        (
            "srt/speculative/dflash_worker.py",
            "class DFlashWorker:",
            "class DFlashWorkerX:",
            "sglang.srt.speculative.dflash_worker:DFlashWorker.__init__: not found",
        ),
    ],
)
def test_a_changed_source_is_refused_whole_with_the_function_named(
    rig, plugin_folder, tmp_path, module, old, new, says
):
    folder = altered_sglang(rig, tmp_path, module, old, new)
    state = decide(rig, plugin_folder, folder)
    assert not state["patches"]
    assert "the installed source is not SGLang 0.5.11's" in state["refusal"]
    assert says in state["refusal"]


def test_a_change_in_what_is_not_relied_upon_does_not_matter(rig, plugin_folder, tmp_path):
    folder = altered_sglang(
        rig, tmp_path, "srt/models/dflash.py", "Unsupported DFlash activation", "Unknown DFlash activation"
    )
    assert decide(rig, plugin_folder, folder)["patches"]


def test_a_second_copy_is_refused_with_both_places(rig, plugin_folder, tmp_path):
    points = "[sglang.srt.plugins]\ndflash = dflash_sglang.entry:register\n"
    other = distribution(tmp_path, "my-dflash-fork", "7.0", points)
    refusal = decide(rig, plugin_folder, other)["refusal"]
    assert "installed 2 times" in refusal
    assert f"my-dflash-fork 7.0 in {tmp_path}" in refusal
    assert str(plugin_folder) in refusal


def test_code_from_elsewhere_than_the_installed_copy_is_refused(rig, plugin_folder, tmp_path):
    (tmp_path / "dflash_sglang").symlink_to(plugin_folder / "dflash_sglang")
    assert decide(rig, tmp_path, plugin_folder)["refusal"] is None, (
        "a link to the same folder is the same copy"
    )
    (tmp_path / "dflash_sglang").unlink()
    (tmp_path / "dflash_sglang").mkdir()
    for item in (plugin_folder / "dflash_sglang").iterdir():
        if item.is_file():
            (tmp_path / "dflash_sglang" / item.name).write_bytes(item.read_bytes())
    refusal = decide(rig, tmp_path, plugin_folder)["refusal"]
    assert f"Python loads dflash_sglang from {tmp_path / 'dflash_sglang'}" in refusal
