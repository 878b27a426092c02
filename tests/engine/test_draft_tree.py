"""The draft tree: shape, optimality, order among equals, mask."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dflash_engine.tree import Tree, best_first, chain, root_only

BONUS = 7

small_logits = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(2, 5)),
    elements=st.floats(-6, 6, width=32),
)


def log_probs(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return (
        wide
        - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - wide.max(-1, keepdims=True)
    )


def paths(tree: Tree) -> list[tuple[int, ...]]:
    """Tokens from below the root to each node."""
    out: list[tuple[int, ...]] = [()]
    for token, parent in list(zip(tree.tokens, tree.parents, strict=True))[1:]:
        out.append((*out[parent], token))
    return out


def possible_nodes(slots: int, vocabulary: int) -> int:
    return sum(vocabulary**depth for depth in range(1, slots + 1))


@given(small_logits, st.integers(1, 60))
def test_prefix_closed_with_exactly_the_budgeted_nodes(logits: np.ndarray, budget: int) -> None:
    tree = best_first(BONUS, logits, budget)
    nodes = paths(tree)[1:]
    assert tree.tokens[0] == BONUS
    assert len(nodes) == tree.drafts == min(budget, possible_nodes(*logits.shape))
    assert len(set(nodes)) == len(nodes), "no node twice"
    assert all(path[:-1] in {(), *nodes} for path in nodes), "every prefix of a node is a node"
    assert all(parent < i for i, parent in enumerate(tree.parents)), "parents come first"
    assert list(tree.depths) == [len(path) for path in paths(tree)]


@given(small_logits, st.integers(1, 30))
def test_no_other_tree_of_that_size_has_a_larger_sum_of_path_probabilities(
    logits: np.ndarray, budget: int
) -> None:
    """Brute force over all paths: the best B of them bound every tree of B nodes from above."""
    slots, vocabulary = logits.shape
    table = log_probs(logits)
    everything = sorted(
        (
            float(np.exp(sum(table[i, t] for i, t in enumerate(path))))
            for depth in range(1, slots + 1)
            for path in itertools.product(range(vocabulary), repeat=depth)
        ),
        reverse=True,
    )
    tree = best_first(BONUS, logits, budget)
    got = sum(float(np.exp(sum(table[i, t] for i, t in enumerate(path)))) for path in paths(tree)[1:])
    assert got == pytest.approx(sum(everything[:budget]), rel=1e-5)


def trees_of(slots: int, vocabulary: int, size: int) -> list[frozenset[tuple[int, ...]]]:
    """Every prefix-closed set of ``size`` paths, by adding one node at a time."""
    level = {frozenset[tuple[int, ...]]()}
    for _ in range(size):
        level = {
            tree | {(*prefix, token)}
            for tree in level
            for prefix in [(), *tree]
            if len(prefix) < slots
            for token in range(vocabulary)
            if (*prefix, token) not in tree
        }
    return list(level)


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(np.float32, (3, 3), elements=st.floats(-4, 4, width=32)), st.integers(1, 4))
def test_optimal_among_all_prefix_closed_trees(logits: np.ndarray, budget: int) -> None:
    table = log_probs(logits)

    def value(tree: frozenset[tuple[int, ...]]) -> float:
        return sum(float(np.exp(sum(table[i, t] for i, t in enumerate(path)))) for path in tree)

    best = max(map(value, trees_of(3, 3, budget)))
    mine = value(frozenset(paths(best_first(BONUS, logits, budget))[1:]))
    assert mine == pytest.approx(best, rel=1e-5)


@given(small_logits, st.integers(1, 30), st.integers(1, 4))
def test_topk_limits_the_candidates_of_every_position(logits: np.ndarray, budget: int, topk: int) -> None:
    tree = best_first(BONUS, logits, budget, topk)
    allowed = [set(np.argsort(-row, kind="stable")[:topk].tolist()) for row in logits]
    assert all(t in allowed[d - 1] for t, d in zip(tree.tokens[1:], tree.depths[1:], strict=True))
    width = min(topk, logits.shape[1])
    assert tree.drafts == min(budget, possible_nodes(len(logits), width))


def test_ties_are_broken_the_same_way_every_time() -> None:
    tree = best_first(BONUS, np.zeros((3, 4), dtype=np.float32), 6)
    assert tree.tokens == (BONUS, 0, 1, 2, 3, 0, 1), "depth first settles, then parent, then token"
    assert tree.parents == (-1, 0, 0, 0, 0, 1, 1)


def test_a_sharp_draft_gives_the_chain() -> None:
    logits = np.full((5, 9), -20.0, dtype=np.float32)
    logits[np.arange(5), [3, 1, 4, 1, 5]] = 20.0
    tree = best_first(BONUS, logits, 5)
    assert tree == chain(BONUS, logits)
    assert tree.tokens == (BONUS, 3, 1, 4, 1, 5)


def test_building_a_tree_leaves_the_logits_alone() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    before = logits.copy()
    best_first(BONUS, logits, 40)
    np.testing.assert_array_equal(logits, before)


@given(small_logits, st.integers(1, 40))
def test_mask_lets_a_node_see_itself_and_its_ancestors_only(logits: np.ndarray, budget: int) -> None:
    tree = best_first(BONUS, logits, budget)
    bias = tree.bias()
    assert bias is not None
    for node in range(len(tree)):
        ancestors, at = set(), node
        while at >= 0:
            ancestors.add(at)
            at = tree.parents[at]
        assert set(np.flatnonzero(bias[node] == 0).tolist()) == ancestors
        assert np.isneginf(bias[node][[i for i in range(len(tree)) if i not in ancestors]]).all()


def test_a_lone_root_needs_no_mask() -> None:
    assert root_only(BONUS).bias() is None
    assert root_only(BONUS).drafts == 0
