"""Anything for a config, anything for a source: no crash, and no guess shown as a fact."""

from __future__ import annotations

import ast
import json
import random
from typing import Any

import pytest
from audit_cases import CONFIG, ENFORCED_LAYERS, FULL, LOG_LINE, SLIDING, attended, look
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_backend.audit.evaluator import Evaluator
from dflash_backend.audit.inputs import MemoryTree
from dflash_backend.audit.paths import explore
from dflash_backend.audit.report import AuditReport, Verdict
from dflash_backend.audit.values import GaveUpError
from rigs.sglang_sources import stock

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")

RELEASE = st.sampled_from(["0.5.11", "0.5.13.post1", "0.5.14", "0.5.18", "0.5.23"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ODD = SCALARS | st.lists(SCALARS, max_size=8) | st.dictionaries(st.text(max_size=8), SCALARS, max_size=4)
KINDS = st.lists(st.sampled_from([SLIDING, FULL, "chunked_attention", "x", None, 3]), max_size=9)
FIELDS = {
    "architectures": st.just(["DFlashDraftModel"]) | ODD,
    "model_type": st.sampled_from(["qwen3", "qwen2", "llama", "gpt_oss", "laguna", "mistral", "kimi"]) | ODD,
    "num_hidden_layers": st.integers(-1, 9) | ODD,
    "layer_types": KINDS | ODD,
    "sliding_window": st.integers(-2, 5000) | ODD,
    "use_sliding_window": st.booleans() | ODD,
    "max_window_layers": st.integers(-1, 40) | ODD,
    "is_causal": st.booleans() | ODD,
    "dflash_config": ODD | st.fixed_dictionaries({}, optional={"causal": ODD, "swa_window_size": ODD}),
    "text_config": ODD | st.fixed_dictionaries({}, optional={"layer_types": KINDS, "sliding_window": ODD}),
    "transformer_layer_config": ODD,
    "speculators_model_type": ODD,
    "hidden_size": ODD,
    "num_attention_heads": ODD,
    "head_dim": ODD,
    "rope_scaling": ODD,
    "block_size": ODD,
}
CONFIGS = st.fixed_dictionaries({}, optional=FIELDS).map(lambda changes: {**CONFIG, **changes})


def sound(report: AuditReport) -> None:
    """What must hold of every report."""
    json.dumps(report.to_json())
    assert report.remedies
    if report.verdict is Verdict.UNKNOWN:
        assert report.missing
        assert report.exit_code == 1
    if report.verdict is Verdict.ENFORCED:
        for row in report.layers:
            assert row.attended_known
            assert row.causal == row.causal_declared
            assert row.declared is None or row.attended == row.declared
    for row in report.layers:
        if row.attended_known:
            assert len(row.evidence) >= 2
        if row.attended is not None:
            assert row.attended > 0


@settings(max_examples=300, deadline=None)
@given(draft=CONFIGS, release=RELEASE, flag=st.none() | st.integers(1, 10_000))
def test_any_config_against_a_release(draft: dict[str, Any], release: str, flag: int | None) -> None:
    sound(look(draft, release, flag))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draft=CONFIGS, release=RELEASE)
def test_release_table_and_real_source_agree_on_any_config(draft: dict[str, Any], release: str) -> None:
    by_source, by_release = look(draft, release, source=stock(release)), look(draft, release)
    sound(by_source)
    source_fails = any(one.code == "start-fails" for one in by_source.findings)
    if not source_fails and by_source.verdict is not Verdict.UNKNOWN:
        assert by_release.verdict is by_source.verdict
        assert attended(by_release) == attended(by_source)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=300) | ODD.map(json.dumps))
def test_any_bytes_for_a_config(data: bytes | str) -> None:
    sound(look(draft=data))


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(st.text(max_size=200) | st.just(LOG_LINE.format(window=8, compact=True)), max_size=8))
def test_any_log(lines: list[str]) -> None:
    sound(look(release="0.5.11", log=lines))


@settings(max_examples=100, deadline=None)
@given(
    info=st.dictionaries(
        st.sampled_from(["version", "speculative_draft_window_size", "internal_states"]), ODD
    )
)
def test_any_server_info(info: dict[str, Any]) -> None:
    sound(look(release=None, server_info={"model_path": "m", **info}))


MODEL = "sglang/srt/models/dflash.py"
UTILS = "sglang/srt/speculative/dflash_utils.py"


def cut(text: str, chance: random.Random) -> str:
    """One random change of a source text, on whole lines and words."""
    lines = text.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    match chance.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines[place] = lines[place] * 2
        case 2:
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        case 3:
            words = lines[place].split(" ")
            chance.shuffle(words)
            lines[place] = " ".join(words)
        case 4:
            return text[: chance.randrange(len(text))]
        case _:
            for old, new in (("None", "0"), ("- 1", "+ 1"), ("not ", ""), ("True", "False"), ("==", "!=")):
                if old in lines[place]:
                    lines[place] = lines[place].replace(old, new, 1)
    return "".join(lines)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), release=st.sampled_from(["0.5.11", "0.5.14"]), changes=st.integers(1, 4))
def test_a_source_with_random_changes(seed: int, release: str, changes: int) -> None:
    chance = random.Random(seed)
    files = dict(stock(release).files)
    for _ in range(changes):
        path = chance.choice([MODEL, UTILS])
        files[path] = cut(files[path].decode(), chance).encode()
    report = look(release=release, source=MemoryTree("changed", files))
    sound(report)
    if report.verdict is Verdict.ENFORCED:
        assert attended(report) == ENFORCED_LAYERS


EXPRESSION = st.recursive(
    st.sampled_from(["1", "0", "None", "True", "'a'", "[]", "{}", "house.x", "x", "-3", "2.5", "()"]),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "//", "**", "and", "or", "in", "==", "<"]), inner
        ).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(st.sampled_from(["len", "int", "str", "list", "set", "sorted", "max"]), inner).map(
            lambda p: f"{p[0]}({p[1]})"
        ),
        st.lists(inner, max_size=3).map(lambda p: f"[{', '.join(p)}]"),
        st.tuples(inner, inner).map(lambda p: f"{p[0]}[{p[1]}]"),
        st.tuples(inner, inner).map(lambda p: f"[{p[0]} for x in {p[1]}]"),
        inner.map(lambda p: f"(not {p})"),
        inner.map(lambda p: f"f'{{{p}}}'" if "'" not in p else p),
    ),
    max_leaves=12,
)


def known(value: Any) -> bool:
    """True for a value without an unknown part."""
    if isinstance(value, list | tuple | set):
        return all(known(item) for item in value)
    if isinstance(value, dict):
        return all(known(item) for item in (*value, *value.values()))
    return isinstance(value, int | float | str | type(None))


@settings(max_examples=300, deadline=None)
@given(text=EXPRESSION)
def test_what_the_evaluator_knows_python_knows_too(text: str) -> None:
    """Every plain value that the evaluator finds is the one that Python finds."""
    try:
        tree = ast.parse(f"result = {text}")
    except (SyntaxError, ValueError):
        return
    try:
        outcomes = explore(lambda oracle: Evaluator({"m": tree}, oracle).module("m").get("result"))
    except GaveUpError:
        return
    if "house" in text or len(outcomes) != 1:
        return
    found = outcomes[0]
    try:
        wanted = eval(text, {})
    except NameError:
        return
    except Exception as error:
        kind = type(error).__name__
        same = found.raised.kind == kind if found.raised else not known(found.value)
        if not same:
            raise AssertionError(f"{text} raises {kind}, the evaluator says {found}") from None
        return
    if found.raised is not None:
        raise AssertionError(f"{text} gives {wanted!r}, the evaluator raises {found.raised}")
    if known(found.value):
        assert found.value == wanted
