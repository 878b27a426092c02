"""Model folders that the engine cannot run are refused with the field or tensor at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dflash_engine.api import MAX_BUDGET, Algorithm, EngineConfig, EngineConfigError
from dflash_engine.config import read_drafter, read_target
from dflash_engine.engine import load_engine
from engine.pairs import BLOCK, VOCAB, TinyPair


def refused(pair: TinyPair, field: str, **settings: Any) -> EngineConfigError:
    with pytest.raises(EngineConfigError) as caught:
        pair.load(Algorithm.DFLASH, **settings)
    assert caught.value.field == field, str(caught.value)
    return caught.value


DRAFTER_VARIANTS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["DFlash2DraftModel"]}, "architectures"),
    ({"architectures": ["DFlashLagunaForCausalLM"]}, "architectures"),
    ({"architectures": ...}, "architectures"),
    ({"model_type": "laguna"}, "model_type"),
    ({"attention_mode": "mla"}, "attention_mode"),
    ({"kv_lora_rank": 512}, "kv_lora_rank"),
    ({"conv_kernel_size": 4}, "conv_kernel_size"),
    ({"selector_rank": 8}, "selector_rank"),
    ({"projector_type": "domino"}, "projector_type"),
    ({"attention_sink_bias": True}, "attention_sink_bias"),
    ({"speculators_model_type": "dflash"}, "speculators_model_type"),
    ({"has_embed_tokens": True}, "has_embed_tokens"),
    ({"swa_window_size": 8}, "swa_window_size"),
    ({"num_experts": 8}, "num_experts"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ({"text_config": {"layer_types": []}}, "text_config"),
    ({"is_causal": True}, "is_causal"),
    ({"is_causal": False}, "is_causal"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"attention_bias": True}, "attention_bias"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 64}}, "rope_scaling"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5}}, "rope_theta"),
    ({"rope_theta": ...}, "rope_parameters.rope_theta"),
    ({"rope_theta": -1}, "rope_theta"),
    ({"block_size": ...}, "block_size"),
    ({"block_size": 1}, "block_size"),
    ({"block_size": "16"}, "block_size"),
    ({"block_size": True}, "block_size"),
    ({"dflash_config": ...}, "mask_token_id"),
    ({"dflash_config": []}, "dflash_config"),
    ({"dflash_config": {"target_layer_ids": [0, 2]}}, "mask_token_id"),
    ({"dflash_config": {"mask_token_id": VOCAB, "target_layer_ids": [0]}}, "dflash_config.mask_token_id"),
    ({"dflash_config": {"mask_token_id": 1}}, "target_layer_ids"),
    ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "dflash_config.target_layer_ids"),
    ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 3]}}, "dflash_config.target_layer_ids"),
    ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [2, 0]}}, "dflash_config.target_layer_ids"),
    (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2], "causal": True}},
        "dflash_config.causal",
    ),
    (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2], "block_size": BLOCK + 1}},
        "dflash_config.block_size",
    ),
    (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2], "projector_type": "dspark"}},
        "dflash_config.projector_type",
    ),
    (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2], "shiny": 3}},
        "dflash_config.shiny",
    ),
    ({"noise_embed_scale": 0.5}, "noise_embed_scale"),
    ({"sliding_window_non_causal": True}, "sliding_window_non_causal"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"layer_types": "sliding_attention"}, "layer_types"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ({"sliding_window": None}, "sliding_window"),
    ({"sliding_window": BLOCK - 1}, "sliding_window"),
    ({"use_sliding_window": False}, "use_sliding_window"),
    ({"use_sliding_window": ...}, "use_sliding_window"),
    ({"vocab_size": VOCAB + 1}, "vocab_size"),
    ({"hidden_size": 48}, "hidden_size"),
    ({"num_target_layers": 7}, "num_target_layers"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_hidden_layers": ...}, "num_hidden_layers"),
    ({"head_dim": 7}, "head_dim"),
    ({"rms_norm_eps": None}, "rms_norm_eps"),
    ({"max_position_embeddings": 100}, "context_length"),
]


@pytest.mark.parametrize(("changes", "field"), DRAFTER_VARIANTS)
def test_drafter_variants_are_refused_by_name(
    breakable: TinyPair, changes: dict[str, Any], field: str
) -> None:
    breakable.edit("drafter", **changes)
    error = refused(breakable, field)
    if field != "context_length":
        assert str(breakable.drafter / "config.json") in str(error)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architectures"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "architectures"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters"),
        ({"eos_token_id": VOCAB}, "eos_token_id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"max_position_embeddings": 100}, "context_length"),
    ],
)
def test_target_variants_are_refused_by_name(
    breakable: TinyPair, changes: dict[str, Any], field: str
) -> None:
    breakable.edit("target", **changes)
    refused(breakable, field)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
@pytest.mark.parametrize("which", ["target", "drafter"])
def test_config_that_is_no_object(breakable: TinyPair, which: str, text: str) -> None:
    (getattr(breakable, which) / "config.json").write_text(text)
    refused(breakable, "config.json")


def test_missing_folder(tmp_path: Path, breakable: TinyPair) -> None:
    with pytest.raises(EngineConfigError, match=r"config\.json: cannot be read"):
        load_engine(EngineConfig(tmp_path / "nowhere"))
    with pytest.raises(EngineConfigError, match=r"config\.json: cannot be read"):
        load_engine(EngineConfig(breakable.target, tmp_path / "nowhere", Algorithm.DFLASH))


def test_what_qwen3config_makes_of_missing_layer_types(breakable: TinyPair) -> None:
    """Sliding from max_window_layers on, and only with use_sliding_window; 28 when the field is absent."""

    def layers() -> tuple[tuple[str, ...], int | None]:
        config = read_drafter(breakable.drafter, read_target(breakable.target))
        return config.layer_types, config.sliding_window

    full, sliding = "full_attention", "sliding_attention"
    breakable.edit("drafter", layer_types=...)
    assert layers() == ((full, full), None)
    breakable.edit("drafter", max_window_layers=1)
    assert layers() == ((full, sliding), 8)
    breakable.edit("drafter", use_sliding_window=False)
    assert layers() == ((full, full), None)


def test_fields_that_may_be_in_either_place(breakable: TinyPair) -> None:
    breakable.edit("drafter", dflash_config=..., mask_token_id=3, target_layer_ids=[1])
    config = read_drafter(breakable.drafter, read_target(breakable.target))
    assert (config.mask_token_id, config.target_layer_ids, config.block_size) == (3, (1,), BLOCK)


def test_fields_of_other_families_that_say_nothing_are_no_reason(breakable: TinyPair) -> None:
    breakable.edit(
        "drafter", quantization_config=None, num_experts=0, partial_rotary_factor=1.0, is_causal=None
    )
    breakable.edit("target", text_config=None, kv_lora_rank=None, use_mrope=False)
    assert breakable.load(Algorithm.DFLASH).block_size == BLOCK


# -- weights

Tensors = dict[str, np.ndarray[Any, Any]]


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, str(path))


@pytest.mark.parametrize("which", ["target", "drafter"])
@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(breakable: TinyPair, which: str, keep: int) -> None:
    path = getattr(breakable, which) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    error = refused(breakable, "weights")
    assert "truncated" in error.message
    assert error.where == str(path)


def test_missing_weights_file(breakable: TinyPair) -> None:
    (breakable.drafter / "model.safetensors").unlink()
    refused(breakable, "weights")


def test_mismatched_weights_list_names_and_shapes(breakable: TinyPair) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["layers.0.mlp.up_proj.weight"]
        tensors["fc.weight"] = tensors["fc.weight"][:, :-1].copy()
        tensors["conv.weight"] = np.zeros(3, dtype=np.float32)

    rewrite(breakable.drafter, change)
    message = refused(breakable, "weights").message
    assert "layers.0.mlp.up_proj.weight is missing" in message
    assert "fc.weight has shape [32, 63], config.json asks for [32, 64]" in message
    assert "conv.weight is not part of this architecture" in message


def test_weights_of_another_depth_are_summarised(breakable: TinyPair) -> None:
    breakable.edit("target", num_hidden_layers=9)
    breakable.edit("drafter", num_target_layers=9)
    message = refused(breakable, "weights").message
    assert "and 60 more" in message
    assert len(message) < 600


def test_weights_that_are_not_finite(breakable: TinyPair) -> None:
    rewrite(breakable.target, lambda t: t["model.norm.weight"].__setitem__(0, np.nan))
    refused(breakable, "norm.weight")


def test_weights_of_an_integer_type(breakable: TinyPair) -> None:
    rewrite(breakable.drafter, lambda t: t.update({"norm.weight": np.zeros(32, dtype=np.int32)}))
    assert "I32" in refused(breakable, "norm.weight").message


def test_sharded_weights_are_read(breakable: TinyPair) -> None:
    whole = breakable.load().next_logits([1, 2, 3])
    path = breakable.target / "model.safetensors"
    tensors = load_file(path)
    names = sorted(tensors)
    for shard, part in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        save_file({n: tensors[n] for n in part}, str(breakable.target / shard))
    index = {n: "a.safetensors" if i % 2 == 0 else "b.safetensors" for i, n in enumerate(names)}
    (breakable.target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    path.unlink()
    np.testing.assert_array_equal(breakable.load().next_logits([1, 2, 3]), whole)
    index[names[0]] = "../drafter/model.safetensors"
    (breakable.target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(EngineConfigError, match="outside the folder"):
        breakable.load()


def test_untied_head(breakable: TinyPair) -> None:
    breakable.edit("target", tie_word_embeddings=False)
    refused(breakable, "weights")
    rewrite(
        breakable.target,
        lambda t: t.update({"lm_head.weight": -t["model.embed_tokens.weight"]}),
    )
    flipped = breakable.load().next_logits([1, 2, 3])
    breakable.edit("target", tie_word_embeddings=True)
    rewrite(breakable.target, lambda t: t.__delitem__("lm_head.weight"))
    np.testing.assert_allclose(flipped, -breakable.load().next_logits([1, 2, 3]), atol=1e-5)


# -- settings


@pytest.mark.parametrize(
    ("algorithm", "settings", "field"),
    [
        (Algorithm.DFLASH, {"block_size": 16}, "block_size"),
        (Algorithm.DFLASH, {"budget": 4}, "budget"),
        (Algorithm.NONE, {"budget": 4}, "budget"),
        (Algorithm.NONE, {"topk": 4}, "topk"),
        (Algorithm.DDTREE, {"budget": 0}, "budget"),
        (Algorithm.DDTREE, {"budget": MAX_BUDGET + 1}, "budget"),
        (Algorithm.DDTREE, {"budget": True}, "budget"),
        (Algorithm.DDTREE, {"topk": 0}, "topk"),
        (Algorithm.DDTREE, {"topk": VOCAB + 1}, "topk"),
        (Algorithm.DFLASH, {"window_size": BLOCK - 1}, "window_size"),
        (Algorithm.NONE, {"context_length": 0}, "context_length"),
        (Algorithm.NONE, {"context_length": 513}, "context_length"),
        (Algorithm.NONE, {"max_running_requests": 0}, "max_running_requests"),
        (Algorithm.NONE, {"max_total_tokens": 0}, "max_total_tokens"),
        (Algorithm.NONE, {"max_queued_requests": -1}, "max_queued_requests"),
        (Algorithm.NONE, {"chunked_prefill_size": 0}, "chunked_prefill_size"),
    ],
)
def test_settings_are_refused_by_name(
    tiny: TinyPair, algorithm: Algorithm, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(EngineConfigError) as caught:
        tiny.load(algorithm, **settings)
    assert caught.value.field == field


def test_algorithm_without_a_drafter(tiny: TinyPair) -> None:
    with pytest.raises(EngineConfigError, match="drafter_path"):
        load_engine(EngineConfig(tiny.target, algorithm=Algorithm.DDTREE, context_length=64))


def test_the_largest_budget_runs(tiny: TinyPair) -> None:
    engine = tiny.load(Algorithm.DDTREE, budget=MAX_BUDGET)
    assert engine.stats.budget == MAX_BUDGET


def test_budget_defaults_to_the_block(tiny: TinyPair) -> None:
    assert tiny.load(Algorithm.DDTREE).stats.budget == BLOCK - 1


# -- tokenizer


@pytest.mark.parametrize("text", [None, "", "{}", '{"decoder": null}', '{"decoder": {"type": "ByteLevel"}}'])
def test_bad_tokenizer_file(breakable: TinyPair, text: str | None) -> None:
    path = breakable.target / "tokenizer.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    refused(breakable, "tokenizer.json")


def test_tokenizer_of_another_kind(breakable: TinyPair) -> None:
    path = breakable.target / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(fields))
    refused(breakable, "decoder")


def test_tokenizer_with_more_tokens_than_the_model(breakable: TinyPair) -> None:
    path = breakable.target / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["zz"] = VOCAB + 40
    path.write_text(json.dumps(fields))
    refused(breakable, "tokenizer.json")
