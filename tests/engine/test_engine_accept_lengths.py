"""Accept lengths on the held-out prompts agree with evaluation.json, in every window mode and context length.

The evaluation was made with the training script's torch code on other held-out prompts, so its mean and ours
are two samples of the same thing. They agree when they are no further apart than three standard errors of a
difference, the prompt-to-prompt spread being taken from our own prompts (evaluation.json has none), or than
``FLOOR`` where that spread is next to nothing. Prompts whose greedy output ends in a loop are left out on
both sides, as in the evaluation's ``by_context_without_loops``: one loop can be accepted whole in any mode
and outweigh all other prompts.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from dflash_engine.api import Algorithm, EngineConfig, Request, SamplingParams, WindowMode
from dflash_engine.engine import load_engine
from dflash_engine.reference_pair import DRAFTER, EVALUATION, TARGET, read_prompts
from engine.pairs import drain

NEW_TOKENS = 96
STANDARD_ERRORS = 3.0
FLOOR = 0.05
"""The evaluation's own rows of one wrong window mode lie this far apart between contexts."""

ARMS: dict[str, dict[str, Any]] = {
    "chain": {"algorithm": Algorithm.DFLASH},
    "chain/all_full": {"algorithm": Algorithm.DFLASH, "window_mode": WindowMode.IGNORED},
    "chain/all_window": {"algorithm": Algorithm.DFLASH, "window_mode": WindowMode.CLAMPED},
    "ddtree4": {"algorithm": Algorithm.DDTREE, "budget": 4},
    "ddtree16": {"algorithm": Algorithm.DDTREE, "budget": 16},
    "ddtree64": {"algorithm": Algorithm.DDTREE, "budget": 64},
}


AT_4096 = ("chain", "chain/all_full", "chain/all_window", "ddtree16")
"""Long prompts take seconds to prefill: the arms that matter most."""


def is_loop(tokens: list[int], tail: int = 48, longest: int = 24) -> bool:
    """The evaluation's rule: the last 48 tokens repeat with a period of at most 24."""
    last = tokens[-tail:]
    return any(last[p:] == last[:-p] for p in range(1, longest + 1))


def evaluation(context: int) -> dict[str, Any]:
    stored = json.loads(EVALUATION.read_text())
    part = "real_loop" if str(context) in stored["real_loop"]["by_context"] else "replay"
    return dict(stored[part]["by_context_without_loops"][str(context)])


@cache
def run(context: int, arm: str) -> tuple[dict[str, float], dict[str, list[int]]]:
    """Accept length (verify steps only) and output tokens of every held-out prompt of a length."""
    engine = load_engine(EngineConfig(TARGET, DRAFTER, max_running_requests=4, **ARMS[arm]))
    for prompt in read_prompts():
        if prompt.context_tokens == context:
            ids = engine.tokenizer.encode(prompt.text)
            engine.add(Request(prompt.file, ids, SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)))
    committed: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    for report in drain(engine):
        for output in report.outputs:
            tokens.setdefault(output.id, []).extend(output.token_ids)
            if output.accepted_drafts is not None:
                committed.setdefault(output.id, []).append(output.accepted_drafts + 1)
    return {k: float(np.mean(v)) for k, v in committed.items()}, tokens


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arm", "context"),
    [(arm, context) for arm in ARMS for context in (256, 1024, 4096) if context < 4096 or arm in AT_4096],
)
def test_accept_length_agrees_with_the_evaluation(arm: str, context: int) -> None:
    lengths, tokens = run(context, arm)
    mine = np.array([v for k, v in lengths.items() if not is_loop(tokens[k])])
    theirs = evaluation(context)
    expected = theirs["methods"][arm]["mean_of_prompt_means"]
    spread = mine.std(ddof=1) * np.sqrt(1 / len(mine) + 1 / theirs["prompts"])
    assert len(mine) >= 4
    tolerance = max(STANDARD_ERRORS * spread, FLOOR)
    assert abs(mine.mean() - expected) < tolerance, (mine.mean(), expected, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("context", [256, 1024])
def test_every_arm_gives_the_same_tokens(context: int) -> None:
    """Batched, in every window mode and with every budget."""
    first = run(context, "chain")[1]
    assert all(run(context, arm)[1] == first for arm in ARMS)


@pytest.mark.slow
@pytest.mark.parametrize("context", [256, 1024])
def test_the_wrong_windows_cost_nearly_all_of_the_speculation(context: int) -> None:
    """The difference that the console is there to show is far beyond any spread."""
    median = {arm: float(np.median(list(run(context, arm)[0].values()))) for arm in ARMS}
    assert median["chain"] > 2.5
    assert median["chain/all_full"] < 1.3
    assert median["chain/all_window"] < 1.3
    assert median["ddtree64"] > median["ddtree16"] > median["ddtree4"]
