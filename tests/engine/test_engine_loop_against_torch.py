"""Step by step, the engine accepts what the training script's own torch loop accepts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams, WindowMode
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, TARGET, read_prompts
from engine.pairs import drain
from engine.test_engine_models_against_torch import torch_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_reference_pair.py"
LENGTH, NEW_TOKENS = 512, 32
ARMS: dict[str, tuple[Algorithm, int | None, WindowMode]] = {
    "chain": (Algorithm.DFLASH, None, WindowMode.DECLARED),
    "chain/all_full": (Algorithm.DFLASH, None, WindowMode.IGNORED),
    "chain/all_window": (Algorithm.DFLASH, None, WindowMode.CLAMPED),
    "ddtree4": (Algorithm.DDTREE, 4, WindowMode.DECLARED),
    "ddtree32": (Algorithm.DDTREE, 32, WindowMode.DECLARED),
    "ddtree16/all_full": (Algorithm.DDTREE, 16, WindowMode.IGNORED),
}


def engine_steps(arm: str, prompt: list[int]) -> list[int]:
    algorithm, budget, mode = ARMS[arm]
    engine = load_engine(EngineConfig(TARGET, DRAFTER, algorithm, budget=budget, window_mode=mode))
    engine.add(Request("r", prompt, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)))
    outputs = [o for report in drain(engine) for o in report.outputs]
    return [o.accepted_drafts + 1 for o in outputs if o.accepted_drafts is not None]


@pytest.mark.slow
def test_accepted_drafts_step_by_step(tmp_path: Path) -> None:
    python = torch_python()
    if python is None:
        pytest.skip("no interpreter with torch and transformers: set DFLASH_TORCH_PYTHON or build a CPU rig")
    config = load_engine(EngineConfig(TARGET)).tokenizer
    text = next(p.text for p in read_prompts() if (p.file, p.context_tokens) == ("email/message.py", 1024))
    # A held-out stream that is just long enough leaves the script one prompt to choose: its beginning.
    ids = np.array(config.encode(text)[: LENGTH + NEW_TOKENS], dtype=np.uint16)
    np.savez(tmp_path / "val.npz", ids=ids, offsets=np.array([0, len(ids)]))
    out = tmp_path / "evaluation.json"
    command = [
        str(python),
        str(SCRIPT),
        "eval",
        "--data",
        str(tmp_path),
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    command += ["--target", str(TARGET), "--drafter", str(DRAFTER), "--plan", f"{LENGTH}:1"]
    command += ["--new", str(NEW_TOKENS), "--budgets", "4", "32"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    methods = json.loads(out.read_text())["by_context"][str(LENGTH)]["methods"]
    prompt = ids[:LENGTH].tolist()
    for arm in ARMS:
        steps = engine_steps(arm, prompt)
        theirs = methods[arm]
        assert theirs["mismatches_vs_ar"] == 0
        assert (len(steps), sum(steps)) == (theirs["verify_steps"], theirs["committed"]), arm
