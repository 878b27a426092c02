"""Speculative output equals plain decoding, token for token, whatever the drafts are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_engine.api import Algorithm, SamplingParams, WindowMode
from dflash_engine.sampling import chooser, greedy
from dflash_engine.target import Segment, Target, causal_bias
from dflash_engine.tree import Tree
from dflash_engine.verify import walk
from engine.pairs import VOCAB, TinyPair, generate, write_tiny_pair

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]

SETTINGS: list[tuple[Algorithm, dict[str, object]]] = [
    (Algorithm.DFLASH, {}),
    (Algorithm.DFLASH, {"window_mode": WindowMode.IGNORED}),
    (Algorithm.DFLASH, {"window_mode": WindowMode.CLAMPED}),
    (Algorithm.DDTREE, {"budget": 1}),
    (Algorithm.DDTREE, {"budget": 2}),
    (Algorithm.DDTREE, {"budget": 7, "topk": 2}),
    (Algorithm.DDTREE, {"budget": 40}),
    (Algorithm.DDTREE, {"budget": 40, "compact_draft_cache": True}),
    (Algorithm.DDTREE, {"budget": 300}),
]


@pytest.mark.parametrize(("algorithm", "changes"), SETTINGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_algorithm_gives_the_tokens_of_plain_decoding(
    tiny: TinyPair, algorithm: Algorithm, changes: dict[str, object], temperature: float
) -> None:
    """With sampling too: the i-th token depends on the seed and the prompt alone."""
    sampling = {"temperature": temperature, "top_p": 0.9, "seed": 11, "max_new_tokens": 60}
    plain = generate(tiny.load(), PROMPT, **sampling)
    assert generate(tiny.load(algorithm, **changes), PROMPT, **sampling) == plain
    assert len(set(plain)) > 2, "a target stuck on one token would prove little"


@pytest.mark.parametrize("seed", range(3))
def test_long_outputs_over_many_windows(tmp_path: object, seed: int) -> None:
    from pathlib import Path

    pair = write_tiny_pair(Path(str(tmp_path)), seed=100 + seed)
    plain = generate(pair.load(), PROMPT, max_new_tokens=200)
    tree = generate(
        pair.load(Algorithm.DDTREE, budget=9, compact_draft_cache=True), PROMPT, max_new_tokens=200
    )
    assert tree == plain


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Any tree at all, children with distinct tokens: not only trees that a drafter would make."""
    tokens, parents, depths = [draw(st.integers(0, VOCAB - 1))], [-1], [0]
    for _ in range(draw(st.integers(0, 30))):
        parent = draw(st.integers(0, len(tokens) - 1))
        token = draw(st.integers(0, VOCAB - 1))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return Tree(tuple(tokens), tuple(parents), tuple(depths))


@pytest.fixture(scope="module")
def target(tiny: TinyPair) -> Target:
    return tiny.models()[0]


def greedy_continuation(target: Target, ids: list[int], count: int) -> list[int]:
    """Plain decoding from scratch: no cache is carried from one token to the next."""
    out: list[int] = []
    for _ in range(count):
        now = ids + out
        cache = target.new_cache(len(now))
        hidden, _ = target.forward(now, range(len(now)), [Segment(cache, len(now), causal_bias(len(now)))])
        out.append(greedy(target.head(hidden[-1:])[0]))
    return out


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), grafted=st.integers(0, 6))
def test_walk_through_any_tree_follows_sequential_decoding(target: Target, tree: Tree, grafted: int) -> None:
    """Verify a tree in one pass and compare its walk with decoding one by one.

    ``grafted`` hangs that many right tokens below the root, so that long accepted paths occur.
    """
    right = greedy_continuation(target, [*PROMPT, tree.tokens[0]], grafted + 31)
    tokens, parents, depths = list(tree.tokens), list(tree.parents), list(tree.depths)
    at = 0
    for token in right[:grafted]:
        known = {(p, t): i for i, (p, t) in enumerate(zip(parents, tokens, strict=True)) if i}
        if (at, token) not in known:
            tokens.append(token)
            parents.append(at)
            depths.append(depths[at] + 1)
            known[at, token] = len(tokens) - 1
        at = known[at, token]
    tree = Tree(tuple(tokens), tuple(parents), tuple(depths))

    cache = target.new_cache(len(PROMPT) + len(tree))
    target.forward(PROMPT, range(len(PROMPT)), [Segment(cache, len(PROMPT), causal_bias(len(PROMPT)))])
    cache.commit(range(len(PROMPT)))
    hidden, _ = target.forward(
        tree.tokens, [len(PROMPT) + d for d in tree.depths], [Segment(cache, len(tree), tree.bias())]
    )
    accepted = walk([tree], [hidden], target, [greedy])[0]

    count = len(accepted.tokens)
    assert list(accepted.tokens) == right[:count], "the target's own tokens, in order"
    assert count >= min(grafted, len(right)) + 1, "right drafts are accepted"
    assert [tree.tokens[n] for n in accepted.path[1:]] == right[: count - 1], "the path carries those tokens"
    children = {(p, t) for p, t in list(zip(tree.parents, tree.tokens, strict=True))[1:]}
    assert (accepted.path[-1], accepted.tokens[-1]) not in children, "it stops only where no child fits"


def test_walks_of_several_requests_do_not_mix(target: Target) -> None:
    prompts = ([1, 2, 3], [4, 5, 6, 7, 8], [9])
    roots = [Tree((p[-1],), (-1,), (0,)) for p in prompts]
    caches, segments = [], []
    for p in prompts:
        cache = target.new_cache(len(p) + 1)
        if len(p) > 1:
            target.forward(p[:-1], range(len(p) - 1), [Segment(cache, len(p) - 1, causal_bias(len(p) - 1))])
            cache.commit(range(len(p) - 1))
        caches.append(cache)
        segments.append(Segment(cache, 1, None))
    hidden, _ = target.forward([p[-1] for p in prompts], [len(p) - 1 for p in prompts], segments)
    got = walk(roots, [hidden[i : i + 1] for i in range(3)], target, [greedy] * 3)
    assert [a.tokens[0] for a in got] == [greedy_continuation(target, p, 1)[0] for p in prompts]


def test_seeds_give_different_samples(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=5)
    runs = {tuple(generate(engine, PROMPT, temperature=1.5, seed=s)) for s in range(5)}
    assert len(runs) == 5
    again = tuple(generate(engine, PROMPT, temperature=1.5, seed=3))
    assert again in runs


def test_unseeded_requests_follow_the_engine_seed(tiny: TinyPair) -> None:
    def two(seed: int) -> list[list[int]]:
        engine = tiny.load(seed=seed)
        return [generate(engine, PROMPT, temperature=1.5) for _ in range(2)]

    assert two(1) == two(1)
    assert two(1)[0] != two(1)[1]
    assert two(1) != two(2)


def test_greedy_prefers_the_smaller_token_among_equals() -> None:
    assert chooser(SamplingParams(), 0)(np.array([0.0, 2.0, 2.0], dtype=np.float32)) == 1
