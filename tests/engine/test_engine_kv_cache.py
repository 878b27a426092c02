"""KV rows: compaction after a walk, the draft cache's windows, and bytes that are really there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_engine.api import Algorithm, Request, SamplingParams, WindowMode
from dflash_engine.drafter import Drafter, resolve_windows
from dflash_engine.kv_cache import DraftCache, TargetCache
from dflash_engine.target import Segment, Target, causal_bias
from dflash_engine.tree import Tree
from engine.pairs import BLOCK, VOCAB, WINDOW, TinyPair

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TREE = Tree((6, 7, 8, 9, 10, 11, 12), (-1, 0, 0, 2, 2, 4, 5), (0, 1, 1, 2, 2, 3, 4))


@pytest.fixture(scope="module")
def models(tiny: TinyPair) -> tuple[Target, Drafter]:
    return tiny.models()


def prefill(target: Target, ids: list[int], chunk: int | None = None) -> tuple[TargetCache, np.ndarray]:
    cache, features = target.new_cache(len(ids)), []
    step = chunk or len(ids)
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        segment = Segment(cache, len(part), causal_bias(len(part)))
        features.append(target.forward(part, range(start, start + len(part)), [segment])[1])
        cache.commit(range(len(part)))
    return cache, np.concatenate(features)


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2, 3], [0, 2, 4, 5, 6]])
def test_kv_after_compaction_equals_a_fresh_prefill(models: tuple[Target, Drafter], path: list[int]) -> None:
    target, drafter = models
    windows = resolve_windows(drafter.config, WindowMode.DECLARED, None)
    cache, features = prefill(target, PROMPT)
    draft = drafter.new_cache(windows, compact=False, capacity=4)
    drafter.add_context([draft], [len(features)], features)
    positions = [len(PROMPT) + d for d in TREE.depths]
    _, features = target.forward(TREE.tokens, positions, [Segment(cache, len(TREE), TREE.bias())])
    cache.commit(path)
    drafter.add_context([draft], [len(path)], features[path])

    ids = PROMPT + [TREE.tokens[n] for n in path]
    fresh, fresh_features = prefill(target, ids)
    n = len(ids)
    assert cache.length == fresh.length == n
    np.testing.assert_allclose(cache.keys[..., :n], fresh.keys[..., :n], atol=1e-5)
    np.testing.assert_allclose(cache.values[:, :, :n], fresh.values[:, :, :n], atol=1e-5)
    whole = drafter.new_cache(windows, compact=False, capacity=n)
    drafter.add_context([whole], [n], fresh_features)
    after = [drafter.block_logits([c], [1], windows, BLOCK - 1) for c in (draft, whole)]
    np.testing.assert_allclose(after[0], after[1], atol=1e-4)


def test_keeping_the_wrong_rows_shows(models: tuple[Target, Drafter]) -> None:
    """Guards the test above: a compaction that keeps a sibling's row is far from a fresh prefill."""
    target, _ = models
    cache, _ = prefill(target, PROMPT)
    positions = [len(PROMPT) + d for d in TREE.depths]
    target.forward(TREE.tokens, positions, [Segment(cache, len(TREE), TREE.bias())])
    cache.commit([0, 1])
    fresh, _ = prefill(target, [*PROMPT, 6, 8])
    n = fresh.length
    assert np.abs(cache.keys[..., :n] - fresh.keys[..., :n]).max() > 0.1


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_prefill_in_chunks_equals_prefill_at_once(
    models: tuple[Target, Drafter], length: int, chunk: int
) -> None:
    target, _ = models
    ids = [(7 * i) % VOCAB for i in range(length)]
    (a, fa), (b, fb) = prefill(target, ids), prefill(target, ids, chunk)
    np.testing.assert_allclose(a.keys[..., :length], b.keys[..., :length], atol=1e-5)
    np.testing.assert_allclose(fa, fb, atol=1e-5)


def test_long_prompts_are_attended_in_blocks_of_rows(
    models: tuple[Target, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = models
    ids = [(5 * i) % VOCAB for i in range(50)]
    whole, features = prefill(target, ids)
    monkeypatch.setattr("dflash_engine.target._ATTENTION_CELLS", 4 * 50 * 7)
    parts, part_features = prefill(target, ids)
    np.testing.assert_allclose(features, part_features, atol=1e-5)
    np.testing.assert_allclose(whole.keys, parts.keys, atol=1e-5)


MODES = [
    (WindowMode.DECLARED, None),
    (WindowMode.DECLARED, BLOCK),
    (WindowMode.CLAMPED, None),
    (WindowMode.CLAMPED, BLOCK + 3),
    (WindowMode.IGNORED, None),
]


@pytest.mark.parametrize(("mode", "size"), MODES)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_a_compact_draft_cache_gives_the_same_drafts(
    models: tuple[Target, Drafter], mode: WindowMode, size: int | None, counts: list[int], seed: int
) -> None:
    _, drafter = models
    windows = resolve_windows(drafter.config, mode, size)
    rng = np.random.default_rng(seed)
    caches = [drafter.new_cache(windows, compact=c, capacity=50) for c in (False, True)]
    for count in counts:
        if caches[0].length + count + BLOCK > 500:
            break
        features = rng.standard_normal((count, 64)).astype(np.float32)
        for cache in caches:
            drafter.add_context([cache], [count], features)
        plain, compact = (drafter.block_logits([c], [1], windows, BLOCK - 1) for c in caches)
        np.testing.assert_allclose(plain, compact, atol=1e-5)
        n = caches[0].length
        rows = sum(n if k is None else min(k, n) for k in windows.keep())
        assert caches[1].bytes_held == rows * 2 * 2 * 8 * 4
        assert caches[0].bytes_held == caches[1].bytes_uncompacted == 2 * n * 2 * 2 * 8 * 4
        assert caches[1].bytes_held <= caches[1].bytes_allocated


def test_keep_of_every_mode(models: tuple[Target, Drafter]) -> None:
    _, drafter = models
    keep = {m: resolve_windows(drafter.config, m, None).keep() for m in WindowMode}
    assert keep[WindowMode.DECLARED] == (WINDOW - 1, None), "a causal window counts the token itself"
    assert keep[WindowMode.IGNORED] == (None, None)
    assert keep[WindowMode.CLAMPED] == (WINDOW, WINDOW)
    limited = resolve_windows(drafter.config, WindowMode.DECLARED, BLOCK)
    assert limited.keep() == (BLOCK, BLOCK), "the cached window holds full layers too"


def test_draft_kv_bytes_of_a_running_request(tiny: TinyPair) -> None:
    """What ``stats`` reports, on a context well beyond the window: the sliding layer stops growing."""
    held = {}
    for compact in (False, True):
        engine = tiny.load(Algorithm.DFLASH, compact_draft_cache=compact)
        prompt = [1 + i % 20 for i in range(150)]
        engine.add(Request("r", prompt, SamplingParams(max_new_tokens=50, ignore_eos=True)))
        engine.step()
        stats = engine.stats
        assert stats.used_tokens == 150
        assert stats.draft_kv_bytes_uncompacted == 2 * 150 * 128
        assert stats.target_kv_bytes == 150 * 3 * 2 * 8 * (4 + 8)
        held[compact] = stats.draft_kv_bytes
    assert held == {False: 2 * 150 * 128, True: (150 + WINDOW - 1) * 128}


@pytest.mark.parametrize("compact", [False, True])
def test_draft_context_after_decoding_equals_a_fresh_one(tiny: TinyPair, compact: bool) -> None:
    """Each committed token's features reach the drafter's rows, in order, whatever branch they came from."""
    engine = tiny.load(Algorithm.DDTREE, budget=40, compact_draft_cache=compact)
    target, drafter = tiny.models()
    windows = resolve_windows(drafter.config, WindowMode.DECLARED, None)
    params = SamplingParams(temperature=1.0, max_new_tokens=60, ignore_eos=True, seed=4)
    engine.add(Request("r", PROMPT, params))
    tokens, branched = list(PROMPT), False
    while engine.has_work:
        for output in engine.step().outputs:
            tokens += output.token_ids
            branched = branched or bool(output.accepted_drafts)
            if output.finish is None:
                committed = tokens[: output.committed_tokens]
                used = engine._scheduler.running[0].draft_cache
                assert used is not None
                fresh = drafter.new_cache(windows, compact=False, capacity=len(committed))
                drafter.add_context([fresh], [len(committed)], prefill(target, committed)[1])
                logits = [drafter.block_logits([c], [1], windows, BLOCK - 1) for c in (used, fresh)]
                np.testing.assert_allclose(logits[0], logits[1], atol=1e-3)
    assert branched


def test_buffers_of_a_compact_cache_stay_small() -> None:
    cache = DraftCache(2, 8, [7], capacity=100_000, block_size=6)
    k = np.zeros((400, 1, 2, 8), dtype=np.float32)
    sizes = set()
    for _ in range(20):
        cache.append(k, k)
        sizes.add(cache.bytes_allocated)
    assert len(sizes) == 1
    assert cache.bytes_allocated < 400 * 128
    assert cache.length == 8000
