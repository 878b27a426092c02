"""Window modes by probing: a token outside a layer's window cannot change the draft, one inside does.

With one layer, what a slot sees is what its logits depend on; the pair here has a single drafter layer so
that no later layer widens the view.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dflash_engine.api import EngineConfigError, WindowMode
from dflash_engine.drafter import Drafter, resolve_windows
from engine.pairs import BLOCK, WINDOW, TinyPair, load_models, write_tiny_pair

N = 20
"""Context tokens; the window is 8, so there are tokens on both sides of it."""


def single_layer(folder: Path, kind: str) -> Drafter:
    """A drafter with one layer of the given kind."""
    pair = write_tiny_pair(folder)
    pair.edit("drafter", num_hidden_layers=1, layer_types=[kind])
    path = pair.drafter / "model.safetensors"
    tensors = {k: v for k, v in load_file(path).items() if not k.startswith("layers.1.")}
    save_file(tensors, str(path))
    return load_models(pair.target, pair.drafter, 64)[1]


def sees(drafter: Drafter, mode: WindowMode, size: int | None = None) -> np.ndarray:
    """Boolean ``[BLOCK - 1 slots, N context positions]``: whose features change which slot's logits."""
    windows = resolve_windows(drafter.config, mode, size)
    features = np.random.default_rng(3).standard_normal((N, 64)).astype(np.float32)

    def logits(x: np.ndarray) -> np.ndarray:
        cache = drafter.new_cache(windows, compact=False, capacity=N)
        drafter.add_context([cache], [N], x)
        return drafter.block_logits([cache], [1], windows, BLOCK - 1)[0]

    base = logits(features)
    seen = []
    for position in range(N):
        changed = features.copy()
        changed[position] += 1.0
        difference = np.abs(logits(changed) - base).max(-1)
        assert ((difference == 0) | (difference > 1e-4)).all(), "either no influence at all, or a clear one"
        seen.append(difference > 0)
    return np.array(seen).T


def expected(first: list[int]) -> np.ndarray:
    return np.arange(N)[None] >= np.array(first)[:, None]


SLOTS = list(range(1, BLOCK))


def test_declared_sliding_layer_moves_its_window_with_the_slot(tmp_path: Path) -> None:
    """Slot i stands at n + i and sees positions > n + i - window."""
    drafter = single_layer(tmp_path, "sliding_attention")
    np.testing.assert_array_equal(
        sees(drafter, WindowMode.DECLARED), expected([N + i - WINDOW + 1 for i in SLOTS])
    )


def test_declared_full_layer_sees_everything(tmp_path: Path) -> None:
    assert sees(single_layer(tmp_path, "full_attention"), WindowMode.DECLARED).all()


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_ignored_sees_everything(tmp_path: Path, kind: str) -> None:
    assert sees(single_layer(tmp_path, kind), WindowMode.IGNORED).all()


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
@pytest.mark.parametrize("size", [6, 8, 13])
def test_clamped_sees_the_last_tokens_of_the_context(tmp_path: Path, kind: str, size: int) -> None:
    """The same for every slot and every kind of layer."""
    drafter = single_layer(tmp_path, kind)
    np.testing.assert_array_equal(sees(drafter, WindowMode.CLAMPED, size), expected([N - size] * len(SLOTS)))


def test_cached_window_limits_declared_layers_further(tmp_path: Path) -> None:
    full = single_layer(tmp_path / "full", "full_attention")
    np.testing.assert_array_equal(sees(full, WindowMode.DECLARED, 9), expected([N - 9] * len(SLOTS)))
    sliding = single_layer(tmp_path / "sliding", "sliding_attention")
    np.testing.assert_array_equal(sees(sliding, WindowMode.DECLARED, 6), expected([N + i - 6 for i in SLOTS]))
    np.testing.assert_array_equal(sees(sliding, WindowMode.DECLARED, 100), sees(sliding, WindowMode.DECLARED))


def block_influence(drafter: Drafter, mode: WindowMode) -> bool:
    """Does a slot see the slots after it? Probed by comparing blocks of different lengths."""
    windows = resolve_windows(drafter.config, mode, WINDOW if mode is WindowMode.CLAMPED else None)
    features = np.random.default_rng(3).standard_normal((N, 64)).astype(np.float32)
    results = []
    for block in (BLOCK, 2):  # slot 1 with slots after it, and as the last one
        drafter.config = replace(drafter.config, block_size=block)
        cache = drafter.new_cache(windows, compact=False, capacity=N)
        drafter.add_context([cache], [N], features)
        results.append(drafter.block_logits([cache], [1], windows, 1)[0, 0])
    return bool(np.abs(results[0] - results[1]).max() > 1e-4)


@pytest.mark.parametrize(
    ("kind", "mode", "both_ways"),
    [
        ("sliding_attention", WindowMode.DECLARED, False),
        ("full_attention", WindowMode.DECLARED, True),
        ("sliding_attention", WindowMode.IGNORED, True),
        ("sliding_attention", WindowMode.CLAMPED, True),
        ("full_attention", WindowMode.CLAMPED, True),
    ],
)
def test_causality_inside_the_block(tmp_path: Path, kind: str, mode: WindowMode, both_ways: bool) -> None:
    assert block_influence(single_layer(tmp_path, kind), mode) is both_ways


def test_fewer_slots_give_the_same_logits(tiny: TinyPair) -> None:
    """Small trees ask for the first slots only: those must not change by it."""
    _, drafter = tiny.models()
    windows = resolve_windows(drafter.config, WindowMode.DECLARED, None)
    features = np.random.default_rng(3).standard_normal((N, 64)).astype(np.float32)
    cache = drafter.new_cache(windows, compact=False, capacity=N)
    drafter.add_context([cache], [N], features)
    everything = drafter.block_logits([cache], [1], windows, BLOCK - 1)[0]
    for slots in range(1, BLOCK):
        np.testing.assert_allclose(
            drafter.block_logits([cache], [1], windows, slots)[0], everything[:slots], atol=1e-5
        )


def test_window_below_the_block_is_refused(tiny: TinyPair) -> None:
    config = tiny.models()[1].config
    for mode in WindowMode:
        with pytest.raises(
            EngineConfigError, match=rf"window_size={BLOCK - 1} must be >= block_size={BLOCK}"
        ):
            resolve_windows(config, mode, BLOCK - 1)


def test_clamping_needs_a_window(breakable: TinyPair) -> None:
    breakable.edit("drafter", layer_types=["full_attention", "full_attention"])
    config = breakable.models()[1].config
    with pytest.raises(EngineConfigError, match="window_size"):
        resolve_windows(config, WindowMode.CLAMPED, None)
    assert resolve_windows(config, WindowMode.CLAMPED, 8).size == 8


def test_stats_say_what_each_layer_attends_to(tiny: TinyPair) -> None:
    from dflash_engine.api import Algorithm

    engine = tiny.load(Algorithm.DFLASH)
    layers = engine.stats.layer_windows
    assert [(w.declared, w.window, w.causal) for w in layers] == [
        ("sliding_attention", WINDOW, True),
        ("full_attention", None, False),
    ]
    engine.reconfigure(window_mode=WindowMode.CLAMPED)
    assert [(w.window, w.causal) for w in engine.stats.layer_windows] == [(WINDOW, False)] * 2
    assert json.dumps([w.declared for w in engine.stats.layer_windows])
