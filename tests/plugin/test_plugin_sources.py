"""Fingerprints of SGLang's source: stable against what does not matter, different for what does."""

import json
from pathlib import Path

import pytest

from dflash_sglang import releases, sources
from dflash_sglang.sources import Source
from rigs.sglang_cpu.rig import SglangRig

TEXT = """
import os

class Worker:
    def __init__(self, args, *, rank=0, **more):
        self.args = args

    @staticmethod
    def name():
        return "worker"

def helper(*values):
    return values
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    return path


def read(path, name):
    return sources.read(f"some.module:{name}", lambda _: path)


def changed(tmp_path, old, new):
    path = tmp_path / "changed.py"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    return path


def test_signatures_are_the_parameters_as_written(module):
    assert read(module, "Worker.__init__").signature == "(self, args, *, rank, **more)"
    assert read(module, "helper").signature == "(*values)"
    assert read(module, "Worker").signature == "class"


def test_a_change_elsewhere_and_trailing_blanks_leave_a_fingerprint_alone(module, tmp_path):
    before = read(module, "Worker.__init__")
    assert read(changed(tmp_path, "return values", "return list(values)"), "Worker.__init__") == before
    assert read(changed(tmp_path, "self.args = args", "self.args = args   "), "Worker.__init__") == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Worker.__init__", "self.args = args", "self.args = list(args)"),
        ("Worker.__init__", "rank=0", "rank=1"),
        ("Worker.name", "@staticmethod", "@classmethod"),
        ("Worker", 'return "worker"', 'return "other"'),
    ],
)
def test_a_change_inside_changes_it(module, tmp_path, name, old, new):
    assert read(changed(tmp_path, old, new), name).fingerprint != read(module, name).fingerprint


def test_what_is_not_there_is_none(module, tmp_path):
    assert read(module, "Worker.missing") is None
    assert read(tmp_path / "absent.py", "Worker") is None
    assert sources.read("no_such_package.module:thing") is None


def test_differences_say_which_function_and_how(module):
    known = {
        "m:Worker.__init__": Source("(self, args)", "0" * 16),
        "m:helper": Source("(*values)", "0" * 16),
        "m:gone": Source("()", "0" * 16),
        "m:Worker.name": read(module, "Worker.name"),
    }
    found = sources.differences(known, [*known, "m:unknown"], lambda _: module)
    assert found[0].startswith(
        "m:Worker.__init__: takes (self, args, *, rank, **more), expected (self, args)"
    )
    assert found[1].startswith("m:helper: fingerprint ")
    assert found[2:] == ["m:gone: not found", "m:unknown: not in this plugin's table"]


def test_the_table_has_every_name_of_every_release_the_plugin_knows():
    table = sources.table()
    assert list(table) == [*releases.PATCHED, *releases.VERIFIED]
    for release, names in table.items():
        assert set(names) == set(releases.all_names(release))


@pytest.mark.sglang
@pytest.mark.parametrize("release", ["0.5.11", "0.5.14"])
def test_the_installed_sglang_is_what_the_table_says(release):
    rig = SglangRig(release).require()
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from dflash_sglang import releases, sources; "
        "names = releases.all_names(sys.argv[2]); known = sources.table()[sys.argv[2]]; "
        "print(json.dumps([sources.differences(known, names), 'sglang' in sys.modules]))"
    )
    backend = Path(sources.__file__).parents[1]
    assert json.loads(rig.run(code, str(backend), release)) == [[], False], (
        "found as known, and nothing imported"
    )
