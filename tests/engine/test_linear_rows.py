"""Rows of matrix products and of attention do not depend on what is computed with them."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_features__

from dflash_engine.attention import NEVER, attend, rms_norm, rotary_table, rotate
from dflash_engine.linear import Linear, pad_rows
from dflash_engine.reference_pair import DRAFTER, TARGET, read_prompts
from dflash_engine.target import Segment, Target, causal_bias
from dflash_engine.tree import Tree
from engine.pairs import load_models

SHAPES = [
    (512, 256),
    (256, 256),
    (1408, 256),
    (256, 704),
    (4096, 256),
    (256, 768),
    (100, 33),
    (65, 1000),
    (1, 5),
]
ROWS = [1, 2, 3, 4, 5, 8, 16, 17, 33, 65, 200]

wide_vectors = pytest.mark.skipif(
    not __cpu_features__.get("AVX512_SKX") or "OPENBLAS_CORETYPE" in os.environ,
    reason="bitwise equality is promised for OpenBLAS' AVX-512 kernels only",
)


@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
def test_linear_is_the_matrix_product(outputs: int, depth: int) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((outputs, depth)).astype(np.float32)
    x = rng.standard_normal((7, depth)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(Linear(weight)(x), expected, atol=1e-4 * np.sqrt(depth))


@wide_vectors
@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
def test_rows_of_a_product_are_bitwise_independent(outputs: int, depth: int) -> None:
    rng = np.random.default_rng(1)
    linear = Linear(rng.standard_normal((outputs, depth)).astype(np.float32))
    x = rng.standard_normal((max(ROWS), depth)).astype(np.float32)
    whole = linear(x)
    for rows in ROWS:
        np.testing.assert_array_equal(linear(pad_rows(x[:rows]))[:rows], whole[:rows], err_msg=f"{rows} rows")


@wide_vectors
@pytest.mark.parametrize("Hkv", [2, 4])
def test_attention_of_a_row_is_bitwise_independent_of_company_and_place(Hkv: int) -> None:
    """A row over 300 columns, alone; and as the last node of a tree whose path is scattered over the
    columns.
    """
    rng = np.random.default_rng(2)
    H, D, context, path = 4, 64, 290, 6
    q = rng.standard_normal((40, H, D)).astype(np.float32) / 8
    keys = rng.standard_normal((Hkv, D, 400)).astype(np.float32)
    values = rng.standard_normal((Hkv, 400, D))
    used = context + path
    alone = attend(q[:1], keys[..., : used + 8], values[:, : used + 8], None, used)

    spots = context + np.array([0, 3, 4, 11, 20, 39])
    scattered_keys, scattered_values = rng.permuted(keys, axis=-1), rng.permuted(values, axis=1)
    scattered_keys[..., :context], scattered_values[:, :context] = keys[..., :context], values[:, :context]
    scattered_keys[..., spots], scattered_values[:, spots] = keys[..., context:used], values[:, context:used]
    bias = np.full((40, 40), NEVER, dtype=np.float32)
    bias[:, 0] = 0
    bias[0, spots - context] = 0
    crowd = attend(q, scattered_keys[..., :336], scattered_values[:, :336], bias, context + 40)
    np.testing.assert_array_equal(crowd[:1], alone)


@wide_vectors
def test_logits_inside_a_tree_are_bitwise_those_of_plain_decoding() -> None:
    """The whole target of the reference pair: decode nine tokens one by one, then verify them inside a
    tree.
    """
    target, _ = load_models(TARGET, DRAFTER, 512)
    ids = _ids(target, 256)
    cache = target.new_cache(300)
    target.forward(ids, range(256), [Segment(cache, 256, causal_bias(256))])
    cache.commit(range(256))
    tokens, singly = [10], []
    for i in range(9):
        hidden, _ = target.forward([tokens[-1]], [256 + i], [Segment(cache, 1, None)])
        cache.commit([0])
        singly.append(target.head(hidden)[0])
        tokens.append(int(singly[-1].argmax()))

    # Two wrong children for every right node; the right one is sometimes first, sometimes last.
    nodes, parents, depths, right = [10], [-1], [0], [0]
    for depth, token in enumerate(tokens[1:9], start=1):
        wrong = [(token + 1) % 4096, (token + 2) % 4096]
        family = [token, *wrong] if depth % 2 else [*wrong, token]
        for t in family:
            nodes.append(t)
            parents.append(right[-1])
            depths.append(depth)
        right.append(len(nodes) - len(family) + family.index(token))
    tree = Tree(tuple(nodes), tuple(parents), tuple(depths))
    cache.length = 256
    hidden, _ = target.forward(nodes, [256 + d for d in depths], [Segment(cache, len(nodes), tree.bias())])
    together = target.head(hidden)[right]
    np.testing.assert_array_equal(together, np.array(singly))


def _ids(target: Target, count: int) -> list[int]:
    from dflash_engine.tokenizer import ByteLevelTokenizer

    text = next(p.text for p in read_prompts() if p.context_tokens == 256)
    return ByteLevelTokenizer(TARGET, 4096).encode(text)[:count]


def test_rms_norm_and_rotation_against_their_formulas() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 3, 8)).astype(np.float32)
    weight = rng.standard_normal(8).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(rms_norm(x, weight, 1e-6), expected, rtol=1e-5)

    table = rotary_table(10000.0, 8, 100)
    turned = rotate(x, table[[0, 1, 50, 98, 99]])
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-5)
    # Relative positions only: the same shift of both leaves the product of a query and a key alone.
    q, k = x[:1], x[1:2]
    products = [
        float((rotate(q, table[[m]])[0, 0] * rotate(k, table[[m - 7]])[0, 0]).sum()) for m in (7, 20, 90)
    ]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)


def test_causal_bias() -> None:
    assert causal_bias(1) is None
    bias = causal_bias(4)
    assert bias is not None
    np.testing.assert_array_equal(bias == 0, np.tril(np.ones((4, 4), dtype=bool)))
