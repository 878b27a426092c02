"""The numpy models give the numbers of transformers and of a plain torch drafter, on the same weights."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_engine.api import Algorithm, EngineConfig, WindowMode
from dflash_engine.drafter import Drafter, resolve_windows
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, FOLDER, TARGET
from dflash_engine.target import Segment, Target, causal_bias
from engine.pairs import generate, load_models
from engine.torch_columns import COLUMNS, columns

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "reference_pair.npz"
CASES = ("short", "edge", "long")
TOLERANCE = 5e-4
"""Of logits up to about 20: float32 sums in another order, through nine layers."""

Numbers = dict[str, np.ndarray[Any, Any]]


def torch_python() -> Path | None:
    """An interpreter with torch and transformers: DFLASH_TORCH_PYTHON, or one of the CPU rigs."""
    named = os.environ.get("DFLASH_TORCH_PYTHON")
    rigs = Path(__file__).parents[2] / ".rigs"
    candidates = [Path(named)] if named else sorted(rigs.glob("*/bin/python"), reverse=True)
    check = "import torch, transformers, safetensors, tokenizers"
    for python in candidates:
        if subprocess.run([str(python), "-c", check], capture_output=True, timeout=120).returncode == 0:
            return python
    return None


@cache
def golden() -> Numbers:
    with np.load(GOLDEN) as stored:
        return dict(stored)


@cache
def models() -> tuple[Target, Drafter]:
    return load_models(TARGET, DRAFTER, 2048)


@cache
def forward(case: str) -> tuple[Any, Any]:
    """Logits of the last token and the features of all tokens of a case's prompt."""
    target, _ = models()
    ids = golden()[f"{case}/ids"].tolist()
    cache_ = target.new_cache(len(ids))
    hidden, features = target.forward(
        ids, range(len(ids)), [Segment(cache_, len(ids), causal_bias(len(ids)))]
    )
    return target.head(hidden[-1:])[0], features


def compare(numbers: Numbers, case: str) -> None:
    """The engine's target and drafter against one case of ``torch_reference.py``'s output."""
    _, drafter = models()
    logits, features = forward(case)
    np.testing.assert_allclose(logits, numbers[f"{case}/logits"], atol=TOLERANCE)
    np.testing.assert_allclose(features[-1], numbers[f"{case}/features_last"], atol=TOLERANCE, rtol=1e-4)
    bonus = int(logits.argmax())
    for mode in WindowMode:
        windows = resolve_windows(drafter.config, mode, None)
        cache_ = drafter.new_cache(windows, compact=False, capacity=len(features))
        drafter.add_context([cache_], [len(features)], features)
        block = drafter.block_logits([cache_], [bonus], windows, drafter.config.block_size - 1)[0]
        np.testing.assert_allclose(
            block[:, columns(block.shape[1])], numbers[f"{case}/draft/{mode}/columns"], atol=TOLERANCE
        )
        assert block.argmax(-1).tolist() == numbers[f"{case}/draft/{mode}/argmax"].tolist()


@pytest.mark.parametrize("case", CASES)
def test_models_give_the_stored_torch_numbers(case: str) -> None:
    assert golden()[f"{case}/draft/declared/columns"].shape[1] == COLUMNS
    compare(golden(), case)


@pytest.mark.parametrize("case", CASES)
def test_window_modes_differ_where_they_should(case: str) -> None:
    """Guards the comparison itself: numbers of another mode would not pass it."""
    numbers = golden()
    declared = numbers[f"{case}/draft/declared/columns"]
    for other in ("ignored", "clamped"):
        assert np.abs(declared - numbers[f"{case}/draft/{other}/columns"]).max() > 100 * TOLERANCE


def test_greedy_tokens_are_those_of_transformers() -> None:
    engine = load_engine(EngineConfig(TARGET, DRAFTER, Algorithm.DDTREE, budget=8))
    for case in CASES:
        expected = golden()[f"{case}/greedy"].tolist()
        prompt = golden()[f"{case}/ids"].tolist()
        assert generate(engine, prompt, max_new_tokens=len(expected)) == expected


def test_tokenizer_gives_the_same_ids() -> None:
    from dflash_engine.reference_pair import read_prompts

    engine = load_engine(EngineConfig(TARGET))
    prompt = next(p for p in read_prompts() if p.file == "ipaddress.py" and p.context_tokens == 64)
    assert engine.tokenizer.encode(prompt.text) == golden()["short/ids"].tolist()


@pytest.mark.slow
def test_models_give_the_numbers_of_torch_now(tmp_path: Path) -> None:
    """The same comparison with freshly computed numbers, so that the stored ones cannot go stale unseen."""
    python = torch_python()
    if python is None:
        pytest.skip("no interpreter with torch and transformers: set DFLASH_TORCH_PYTHON or build a CPU rig")
    out = tmp_path / "fresh.npz"
    script = HERE / "torch_reference.py"
    run = subprocess.run(
        [str(python), str(script), str(out), "--data", str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    with np.load(out) as stored:
        fresh = dict(stored)
    for case in CASES:
        compare(fresh, case)
        assert fresh[f"{case}/greedy"].tolist() == golden()[f"{case}/greedy"].tolist()
