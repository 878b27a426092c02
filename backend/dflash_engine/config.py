"""config.json of a target and of a drafter, as far as this engine can run them.

Every variant that the engine cannot run is refused with the field's name (``EngineConfigError``): a field
that is quietly skipped would give a model that runs and is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import EngineConfigError

SLIDING, FULL = "sliding_attention", "full_attention"

TARGET_ARCHITECTURES = ("Qwen3ForCausalLM",)
DRAFTER_ARCHITECTURES = ("DFlashDraftModel",)

# Fields of other model families or other drafters: (field, what it would mean). Refused unless absent, null
# or false (or an empty list), in both configs.
_FOREIGN_FIELDS = {
    "text_config": "a nested text model",
    "vision_config": "a vision model",
    "quantization_config": "quantised weights",
    "compression_config": "quantised weights",
    "attention_mode": "another attention kind (MLA)",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "q_lora_rank": "multi-head latent attention (MLA)",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "conv_kernel_size": "a DFlash2 drafter with convolutions",
    "conv_group_size": "a DFlash2 drafter with convolutions",
    "selector_rank": "a DFlash2 drafter with a selector",
    "selector_top_k": "a DFlash2 drafter with a selector",
    "projector_type": "a Domino or DSpark drafter",
    "attention_sink_bias": "attention sinks",
    "attention_value_scale": "scaled values",
    "attention_modes": "per-layer attention modes (SpecForge)",
    "speculators_model_type": "the speculators format (vLLM)",
    "has_embed_tokens": "a drafter with its own embedding",
    "draft_vocab_size": "a drafter with its own vocabulary",
    "swa_window_size": "a Nemotron drafter",
    "eagle_aux_hidden_state_layer_ids": "a Nemotron drafter",
    "attn_logit_softcapping": "capped attention logits",
    "final_logit_softcapping": "capped logits",
    "use_mrope": "multi-axis RoPE",
    "partial_rotary_factor": "partial RoPE",
    "noise_embed_scale": "scaled mask embeddings",
    "sample_from_anchor": "a Nemotron drafter",
    "sliding_window_non_causal": "sliding layers that look both ways",
}

_HARMLESS: dict[str, tuple[object, ...]] = {"partial_rotary_factor": (1,), "noise_embed_scale": (1,)}
"""Values of the fields above that change nothing, besides null, false, 0 and empty ones."""

_DFLASH_FIELDS = ("mask_token", "mask_token_id", "target_layer_ids", "block_size")
"""All that this engine knows in ``dflash_config``: any other field may change what the drafter computes."""


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What target and drafter have in common: a stack of Qwen3 layers."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A Qwen3 target. ``tied``: the head is the transposed embedding."""

    architecture: str
    stack: StackConfig
    tied: bool
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A DFlash drafter. ``sliding_window`` is None when no layer slides."""

    architecture: str
    stack: StackConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[str, ...]
    sliding_window: int | None


class _Fields:
    """Typed access to one config.json; every error names the field and the file."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def error(self, name: str, message: str) -> EngineConfigError:
        return EngineConfigError(self.prefix + name, message, where=self.where)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def count(self, name: str, *, minimum: int = 1) -> int:
        """A whole number >= ``minimum``."""
        value = self.values.get(name)
        if value is None:
            raise self.error(name, "missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"must be a whole number >= {minimum}, is {value!r}")
        return value

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(name, f"must be a number > 0, is {value!r}" if value is not None else "missing")
        return float(value)

    def only(self, name: str, allowed: object, *, default: object) -> None:
        value = self.values.get(name, default)
        if value != allowed:
            raise self.error(name, f"this engine runs only {allowed!r}, the config says {value!r}")

    def int_list(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        if (
            not isinstance(value, list)
            or not value
            or any(isinstance(v, bool) or not isinstance(v, int) for v in value)
        ):
            raise self.error(name, f"must be a list of whole numbers, is {value!r}")
        return tuple(value)


def _read(folder: Path) -> _Fields:
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineConfigError(
            "config.json", f"cannot be read: {error.strerror}", where=str(folder)
        ) from error
    except ValueError as error:
        raise EngineConfigError("config.json", f"is not JSON: {error}", where=str(folder)) from error
    if not isinstance(values, dict):
        raise EngineConfigError("config.json", "is not a JSON object", where=str(folder))
    return _Fields(values, str(path))


def _architecture(fields: _Fields, known: tuple[str, ...]) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise fields.error(
            "architectures", f"this engine runs {' or '.join(known)}, the config says {names!r}"
        )
    fields.only("model_type", "qwen3", default="qwen3")
    return str(names[0])


def _refuse_foreign(fields: _Fields) -> None:
    for name, meaning in _FOREIGN_FIELDS.items():
        if fields.get(name) not in (None, False, [], {}, 0, *_HARMLESS.get(name, ())):
            raise fields.error(name, f"means {meaning}, which this engine does not run")
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_bias", False, default=False)
    fields.only("mlp_bias", False, default=False)


def _rope_theta(fields: _Fields) -> float:
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise fields.error(name, f"must be an object or null, is {value!r}")
        kind = value.get("rope_type", value.get("type", "default"))
        extra = sorted(set(value) - {"rope_type", "type", "rope_theta"})
        if kind != "default" or extra:
            raise fields.error(
                name, f"this engine runs plain RoPE only, the config says {kind!r} {extra or ''}".rstrip()
            )
    parameters = fields.get("rope_parameters") or {}
    if fields.get("rope_theta") is None:
        return _Fields(parameters, fields.where, "rope_parameters.").number("rope_theta")
    theta = fields.number("rope_theta")
    if parameters.get("rope_theta", theta) != theta:
        raise fields.error("rope_theta", f"{theta:g} here, {parameters['rope_theta']!r} in rope_parameters")
    return theta


def _stack(fields: _Fields) -> StackConfig:
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    hidden = fields.count("hidden_size")
    head_dim = fields.count("head_dim") if fields.get("head_dim") is not None else hidden // heads
    if head_dim % 2:
        raise fields.error("head_dim", f"RoPE needs an even number, is {head_dim}")
    return StackConfig(
        layers=fields.count("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        max_position_embeddings=fields.count("max_position_embeddings"),
        vocab_size=fields.count("vocab_size"),
    )


def _declared_layers(fields: _Fields, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Layer types and window as transformers' Qwen3Config and SGLang >= 0.5.14 read them.

    Qwen3Config drops ``sliding_window`` unless ``use_sliding_window`` is true, and fills in a missing
    ``layer_types`` with sliding layers from ``max_window_layers`` (28 if absent) on.
    """
    window = fields.count("sliding_window") if fields.get("sliding_window") is not None else None
    use = fields.get("use_sliding_window")
    if use not in (None, True, False):
        raise fields.error("use_sliding_window", f"must be true or false, is {use!r}")
    types = fields.get("layer_types")
    if types is None:
        from_layer = (
            28 if fields.get("max_window_layers") is None else fields.count("max_window_layers", minimum=0)
        )
        slides = bool(use) and window is not None
        types = [SLIDING if slides and i >= from_layer else FULL for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise fields.error(
            "layer_types", f"must be a list of num_hidden_layers = {layers} entries, is {types!r}"
        )
    unknown = [t for t in types if t not in (SLIDING, FULL)]
    if unknown:
        raise fields.error("layer_types", f"knows {SLIDING} and {FULL}, not {unknown[0]!r}")
    if SLIDING not in types:
        return tuple(types), None
    if window is None:
        raise fields.error("sliding_window", "DFLASH sliding_attention layers require config.sliding_window.")
    if not use:
        raise fields.error(
            "use_sliding_window",
            "must be true with sliding_attention layers: without it Qwen3Config drops sliding_window "
            "and SGLang does not start",
        )
    return tuple(types), window


def read_target(folder: Path) -> TargetConfig:
    """Parse ``folder/config.json`` (and generation_config.json's end-of-text tokens) of a target."""
    fields = _read(folder)
    architecture = _architecture(fields, TARGET_ARCHITECTURES)
    _refuse_foreign(fields)
    stack = _stack(fields)
    fields.only("use_sliding_window", False, default=False)
    types = fields.get("layer_types")
    if types is not None and (not isinstance(types, list) or any(t != FULL for t in types)):
        raise fields.error("layer_types", "this engine runs targets with full_attention layers only")
    tied = fields.get("tie_word_embeddings")
    if tied not in (None, True, False):
        raise fields.error("tie_word_embeddings", f"must be true or false, is {tied!r}")
    return TargetConfig(architecture, stack, bool(tied), _eos_token_ids(folder, fields, stack.vocab_size))


def _eos_token_ids(folder: Path, fields: _Fields, vocab_size: int) -> frozenset[int]:
    path = folder / "generation_config.json"
    if path.exists():
        try:
            generation = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EngineConfigError(
                "generation_config.json", f"cannot be read: {error}", where=str(folder)
            ) from error
        if isinstance(generation, dict) and generation.get("eos_token_id") is not None:
            fields = _Fields(generation, str(path))
    value = fields.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise fields.error("eos_token_id", f"{token!r} is no token of a vocabulary of {vocab_size}")
    return frozenset(ids)


def read_drafter(folder: Path, target: TargetConfig) -> DrafterConfig:
    """Parse ``folder/config.json`` of a drafter and check that it fits the target."""
    fields = _read(folder)
    architecture = _architecture(fields, DRAFTER_ARCHITECTURES)
    _refuse_foreign(fields)
    nested = fields.get("dflash_config")
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise fields.error("dflash_config", f"must be an object, is {nested!r}")
    dflash = _Fields(nested, fields.where, "dflash_config.")
    _refuse_foreign(dflash)
    for where, name in ((fields, "is_causal"), (dflash, "causal"), (dflash, "is_causal")):
        if where.get(name) is not None:
            raise where.error(name, "overrides the layers' own causality, which this engine does not run")
    for name, value in nested.items():
        if name not in _DFLASH_FIELDS and name not in _FOREIGN_FIELDS and value not in (None, False):
            raise dflash.error(name, "is not known to this engine and may change what the drafter computes")
    stack = _stack(fields)
    _same_as_target(fields, stack, target.stack)

    def either(name: str) -> _Fields:
        both = [f for f in (dflash, fields) if f.get(name) is not None]
        if len(both) == 2 and both[0].get(name) != both[1].get(name):
            raise dflash.error(name, f"{both[0].get(name)!r} here, {both[1].get(name)!r} at the top level")
        if not both:
            raise fields.error(name, "missing, at the top level and in dflash_config")
        return both[0]

    block_size = either("block_size").count("block_size", minimum=2)
    mask = either("mask_token_id")
    mask_token_id = mask.count("mask_token_id", minimum=0)
    if mask_token_id >= stack.vocab_size:
        raise mask.error("mask_token_id", f"{mask_token_id} is outside the vocabulary of {stack.vocab_size}")
    ids_field = either("target_layer_ids")
    layer_ids = ids_field.int_list("target_layer_ids")
    if (
        list(layer_ids) != sorted(set(layer_ids))
        or not 0 <= layer_ids[0] <= layer_ids[-1] < target.stack.layers
    ):
        raise ids_field.error(
            "target_layer_ids",
            f"must be rising layer numbers below the target's {target.stack.layers}, is {list(layer_ids)}",
        )
    layer_types, window = _declared_layers(fields, stack.layers)
    if window is not None and window < block_size:
        raise fields.error("sliding_window", f"window_size={window} must be >= block_size={block_size}")
    return DrafterConfig(architecture, stack, block_size, mask_token_id, layer_ids, layer_types, window)


def _same_as_target(fields: _Fields, drafter: StackConfig, target: StackConfig) -> None:
    """The drafter borrows the target's embedding and head, and reads its layers by number."""
    if drafter.vocab_size != target.vocab_size:
        raise fields.error("vocab_size", f"{drafter.vocab_size}, but the target's is {target.vocab_size}")
    if drafter.hidden_size != target.hidden_size:
        raise fields.error(
            "hidden_size",
            f"{drafter.hidden_size}, but the target's is {target.hidden_size} (its embedding is used)",
        )
    if fields.get("num_target_layers") not in (None, target.layers):
        raise fields.error(
            "num_target_layers", f"{fields.get('num_target_layers')!r}, but the target has {target.layers}"
        )
