"""Sampling: temperature, top-p, and that trees leave the target's distribution alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dflash_engine.api import Algorithm, Request, SamplingParams
from dflash_engine.sampling import pick, probabilities
from engine.pairs import TinyPair, drain, outputs, write_tiny_pair

logits_of_a_position = hnp.arrays(np.float32, st.integers(2, 40), elements=st.floats(-30, 30, width=32))


@given(logits_of_a_position, st.floats(0.05, 5), st.floats(0.01, 1))
def test_top_p_keeps_the_smallest_sufficient_set(
    logits: np.ndarray, temperature: float, top_p: float
) -> None:
    full = probabilities(logits, temperature, 1.0)
    cut = probabilities(logits, temperature, top_p)
    kept = cut > 0
    assert full.sum() == pytest.approx(1.0)
    assert cut.sum() == pytest.approx(1.0)
    assert kept.any()
    mass = full[kept].sum()
    assert mass >= top_p - 1e-9
    assert mass - full[kept].min() < top_p + 1e-9, "without its least member the set would not do"
    np.testing.assert_allclose(cut[kept], full[kept] / mass, rtol=1e-9)


@given(logits_of_a_position, st.floats(0, 1, exclude_max=True))
def test_pick_never_takes_what_has_no_mass(logits: np.ndarray, u: float) -> None:
    p = probabilities(logits, 1.0, 0.5)
    assert p[pick(p, u)] > 0


def test_pick_takes_each_token_for_its_share_of_u() -> None:
    p = np.array([0.25, 0.0, 0.5, 0.25])
    us = (np.arange(1000) + 0.5) / 1000
    assert Counter(pick(p, float(u)) for u in us) == {0: 250, 2: 500, 3: 250}
    assert pick(p, np.nextafter(1.0, 0.0)) == 3


def next_distribution(pair: TinyPair, ids: list[int], temperature: float, top_p: float) -> np.ndarray:
    engine = pair.load()
    return probabilities(engine.next_logits(ids), temperature, top_p)


@pytest.mark.parametrize(
    ("algorithm", "settings", "temperature", "top_p"),
    [
        (Algorithm.NONE, {}, 1.0, 1.0),
        (Algorithm.DFLASH, {}, 1.0, 1.0),
        (Algorithm.DDTREE, {"budget": 12}, 1.0, 1.0),
        (Algorithm.DDTREE, {"budget": 12}, 0.7, 0.8),
    ],
)
def test_sampled_tokens_follow_the_target_chi_square(
    tmp_path: Path, algorithm: Algorithm, settings: dict[str, int], temperature: float, top_p: float
) -> None:
    """The second and third token together, 3,000 samples: both can come from drafts, so a walk that preferred
    drafts (or dropped them) would shift their joint distribution."""
    vocabulary, samples, prompt = 6, 3000, [1, 2]
    pair = write_tiny_pair(tmp_path, seed=5, vocab=vocabulary, sharpness=0.8)
    first = int(np.argmax(next_distribution(pair, prompt, temperature, top_p)))
    engine = pair.load(algorithm, max_running_requests=50, max_total_tokens=100_000, **settings)
    for i in range(samples):
        params = SamplingParams(temperature, top_p, 3, ignore_eos=True, seed=i)
        engine.add(Request(str(i), [*prompt, first], params))
    got = Counter(tuple(tokens[1:]) for tokens in outputs(drain(engine)).values())

    expected: dict[tuple[int, int], float] = {}
    p1 = next_distribution(pair, [*prompt, first], temperature, top_p)
    for a in np.flatnonzero(p1):
        p2 = next_distribution(pair, [*prompt, first, int(a)], temperature, top_p)
        for b in np.flatnonzero(p2):
            p3 = next_distribution(pair, [*prompt, first, int(a), int(b)], temperature, top_p)
            for c in np.flatnonzero(p3):
                key = (int(b), int(c))
                expected[key] = expected.get(key, 0.0) + float(p1[a] * p2[b] * p3[c]) * samples
    assert set(got) <= set(expected), "nothing that the target gives no probability"

    rare = [k for k, v in expected.items() if v < 5]
    cells = [(got[k], expected[k]) for k in expected if k not in rare]
    if rare:
        cells.append((sum(got[k] for k in rare), sum(expected[k] for k in rare)))
    statistic = sum((o - e) ** 2 / e for o, e in cells if e > 0)
    degrees = len(cells) - 1
    assert degrees >= 5
    # Wilson and Hilferty: chi-square's cube root is nearly normal; 4.0 is one false alarm in 30,000.
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / np.sqrt(2 / (9 * degrees))
    assert z < 4.0, f"chi-square {statistic:.1f} for {degrees} degrees of freedom"
