"""``engine verify``: equal runs pass, a fault is found and named, bad usage is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash_engine.api import EngineConfig, RequestError, WindowMode
from dflash_engine.reference_pair import DRAFTER, TARGET, HeldOutPrompt, read_prompts
from dflash_engine.verification import default_arms, main, run_verify
from dflash_engine.verify import Accepted, walk

PAIR = EngineConfig(TARGET, DRAFTER)


def prompts(context: int, count: int) -> list[HeldOutPrompt]:
    return [p for p in read_prompts() if p.context_tokens == context][:count]


def test_all_arms_equal_plain_decoding() -> None:
    report = run_verify(
        PAIR, prompts(64, 2) + prompts(256, 1), default_arms([4, 16], tuple(WindowMode)), new_tokens=24
    )
    assert report.exit_code == 0
    assert not report.mismatches
    names = {r.arm for r in report.results}
    assert names == {"AR", "chain", "chain/ignored", "chain/clamped", "ddtree 4", "ddtree 16"}
    overall = {r.arm: r for r in report.results if r.context_tokens is None}
    assert overall["AR"].accept_length is None
    assert overall["chain"].prompts == 3
    assert overall["chain"].tokens == 72
    chain, tree = overall["chain"].accept_length, overall["ddtree 16"].accept_length
    ignored = overall["chain/ignored"].accept_length
    assert chain is not None
    assert tree is not None
    assert ignored is not None
    assert tree > chain > 2 > ignored
    assert "equals plain decoding, greedy" in report.lines()[-1]


def test_sampled_output_is_compared_too() -> None:
    report = run_verify(PAIR, prompts(64, 1), default_arms([8]), new_tokens=24, temperature=0.8)
    assert report.exit_code == 0
    assert "sampled (temperature 0.8" in report.lines()[-1]


@pytest.fixture
def credulous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk with a fault: it takes the first draft for accepted, whatever the target says."""

    def wrong(trees: Sequence[Any], *rest: Any) -> list[Accepted]:
        out = []
        for tree, right in zip(trees, walk(trees, *rest), strict=True):
            if len(tree) == 1 or len(right.path) > 1:
                out.append(right)
            else:
                out.append(Accepted((0, 1), (tree.tokens[1], right.tokens[-1])))
        return out

    monkeypatch.setattr("dflash_engine.decoding.walk", wrong)


@pytest.mark.usefixtures("credulous")
def test_a_fault_is_found_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--contexts", "64", "--limit", "1", "--budgets", "4", "--max-new-tokens", "30", "--json"])
    assert code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["equal"] is False
    assert [a["mismatches"] for a in found["arms"] if a["arm"] == "ddtree 4"] == [1]
    first = found["mismatches"][0]
    assert first["expected"] != first["got"]
    assert first["top_gap"] > 1e-3, "no near tie: a fault"


@pytest.mark.usefixtures("credulous")
def test_a_fault_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--contexts", "64", "--limit", "1", "--budgets", "4", "--max-new-tokens", "30"]) == 1
    text = capsys.readouterr().out
    assert "mismatch: chain, _compat_pickle.py at 64 tokens: output token" in text
    assert "differs from plain decoding" in text


def test_json_of_a_good_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["--contexts", "64", "--limit", "1", "--budgets", "2", "--max-new-tokens", "8", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is True
    assert {a["arm"] for a in found["arms"]} == {"AR", "chain", "ddtree 2"}
    assert set(found["arms"][0]) >= {"arm", "context_tokens", "accept_length", "verify_steps", "decode_tok_s"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--contexts", "77"], "no prompts of [77] tokens, only [64, 256, 1024, 4096]"),
        (["--model-path", "/nowhere"], "config.json: cannot be read"),
        (["--prompts", "/nowhere.json"], "cannot be read"),
        (["--window-modes", "wide"], "knows declared, ignored, clamped, not 'wide'"),
        (
            ["--budgets", "5000", "--contexts", "64", "--limit", "1", "--max-new-tokens", "2"],
            "from 1 to 1024",
        ),
        (["--temperature", "-1", "--contexts", "64"], "temperature must be"),
    ],
)
def test_bad_usage(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--budgets", "4,x"], ["--contexts", "0"], ["--limit", "many"]])
def test_bad_numbers(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"prompts": [{"file": "x"}]}', '{"prompts": [{"file":"x","context_tokens":1,"text":3}]}'],
)
def test_bad_prompts_file(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    assert main(["--prompts", str(path)]) == 2
    assert "prompts: not a prompts file" in capsys.readouterr().err


def test_a_prompt_longer_than_the_context() -> None:
    from dataclasses import replace

    with pytest.raises(RequestError, match="context length"):
        run_verify(replace(PAIR, context_length=100), prompts(256, 1), default_arms([4]), new_tokens=4)
