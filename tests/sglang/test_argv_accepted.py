"""Real SGLang's own parser agrees with the table and takes every command that the builder makes."""

import functools
import json

import pytest

from dflash_backend.core.profile import Algorithm, Program
from dflash_backend.profiles.store import ProfileStore
from dflash_backend.sglang.argv import compose
from dflash_backend.sglang.command import HostAbilities
from dflash_backend.sglang.options import option_table
from rigs.sglang_cpu.rig import SglangRig

pytestmark = pytest.mark.sglang

_PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang")
ServerArgs.add_cli_args(parser)
def kind(action):
    if isinstance(action, argparse.BooleanOptionalAction): return "toggle"
    if action.nargs == 0: return "flag"
    if action.nargs in ("+", "*"): return "list"
    if action.nargs == "?": return "optional"
    return getattr(action.type, "__name__", "str") or "str"
options = {
    word[2:]: {"kind": kind(action), "choices": sorted(map(str, action.choices)) if action.choices else None}
    for action in parser._actions for word in action.option_strings if word.startswith("--")
}
taken = {}
for name, words in json.loads(sys.argv[1]).items():
    try:
        parser.parse_args(words)
        taken[name] = True
    except SystemExit:
        taken[name] = False
print("ANSWER" + json.dumps({"options": options, "taken": taken}))
"""
_KINDS = {"int": "int", "float": "float", "count": "human_readable_int"}


def commands(release):
    """Every shipped profile for SGLang, as far as nothing but the missing DDTREE stands against it."""
    store = ProfileStore([])
    built = {}
    for name in store.names():
        profile = store.load(name)
        if profile.program is not Program.SGLANG or profile.algorithm is Algorithm.DDTREE:
            continue
        command = compose(profile, release, python=None, port=30000, abilities=HostAbilities())
        # A DFLASH profile that a release refuses on a CPU is still spelled as that release spells it.
        built[name] = list(command.argv[3:])
    return built


@functools.cache
def ask(release):
    rig = SglangRig(release).require()
    output = rig.run(_PARSE, json.dumps(commands(release)), timeout=240)
    return json.loads(output.split("ANSWER", 1)[1])


@pytest.mark.parametrize("release", ["0.5.11", "0.5.13.post1", "0.5.14", "0.5.23"])
def test_the_table_equals_the_parser_hidden_options_included(release):
    theirs = ask(release)["options"]
    ours = option_table().at(release)
    toggles = {f"no-{name}" for name, option in ours.items() if option.kind == "toggle"}
    assert set(ours) | toggles | {"help"} == set(theirs)
    for name, option in ours.items():
        there = theirs[name]
        if option.kind.startswith(("list-", "optional-")):
            assert there["kind"] == option.kind.partition("-")[0], name
        elif option.kind in ("flag", "toggle"):
            assert there["kind"] == option.kind, name
        elif option.kind in _KINDS:
            assert there["kind"] == _KINDS[option.kind], name
        if option.choices is not None:
            assert there["choices"] == sorted(map(str, option.choices)), name


@pytest.mark.parametrize("release", ["0.5.11", "0.5.13.post1", "0.5.14", "0.5.23"])
def test_the_parser_takes_every_shipped_profile(release):
    taken = ask(release)["taken"]
    assert len(taken) >= 6
    assert all(taken.values()), taken
