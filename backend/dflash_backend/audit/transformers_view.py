"""What SGLang sees of a config.json: the attributes that transformers' configuration class makes of it.

The class is chosen by ``model_type``. It may drop a window before SGLang reads it (Qwen), fill in kinds of
layers (Qwen, gpt-oss), or refuse the file, so that the start fails. Run for qwen3 and llama on transformers
5.6.0 and 5.19.0 and for most other types on 5.8.1; the other entries follow the pattern of their family.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_backend.audit.declared import FULL, SLIDING
from dflash_backend.core.text import sanitise

DROPS_WINDOW = frozenset(
    {
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen2_5_omni_text",
        "qwen2_5_omni_talker",
    }
)
"""``sliding_window`` becomes None unless ``use_sliding_window`` is true (its default is false)."""

_FILLS_FROM_MAX_WINDOW_LAYERS = DROPS_WINDOW - {"qwen3_moe"}
_ALTERNATES = frozenset({"gpt_oss"})
_LINEAR = frozenset({"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"})
_ALL_FULL = frozenset({"laguna"})
_WINDOW_FIELD = DROPS_WINDOW | _ALTERNATES | {"mistral", "laguna"}
_DEFAULT_WINDOW = {"gpt_oss": 128, "mistral": 4096, "laguna": 512}
_TYPES_FIELD = _FILLS_FROM_MAX_WINDOW_LAYERS | _ALTERNATES | _LINEAR
_PLAIN = frozenset({"llama", "deepseek_v3", "deepseek_v2", "glm4", "glm4_moe", "mistral", "qwen3_moe"})
KNOWN = _TYPES_FIELD | _PLAIN | _WINDOW_FIELD
"""Model types whose treatment of the fields was looked at."""

_DEFAULT_LAYERS = {
    "qwen2": 32, "qwen3": 32, "qwen3_moe": 24, "llama": 32, "mistral": 32, "gpt_oss": 36, "deepseek_v3": 61,
}  # fmt: skip
"""Layers of a config that does not say how many."""

_LAYER_KINDS = frozenset(
    {
        FULL, SLIDING, "chunked_attention", "linear_attention", "mamba", "conv", "attention", "sparse",
        "dense", "hybrid", "moe", "recurrent", "compressed_sparse_attention", "heavily_compressed_attention",
        "deepseek_sparse_attention", "indexed_attention",
    }
)  # fmt: skip
"""Kinds that transformers lets pass; which of them a release knows differs at the edges."""

_GEOMETRY: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32,
    "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768,
    "initializer_range": 0.02, "rms_norm_eps": 1e-6, "attention_bias": False, "attention_dropout": 0.0,
    "use_cache": True, "tie_word_embeddings": False,
}  # fmt: skip
"""Defaults for what a config may leave out and no window depends on."""

_ALWAYS_THERE = frozenset(
    {
        "rope_scaling", "rope_parameters", "rope_theta", "dtype", "torch_dtype", "is_encoder_decoder",
        "transformers_version", "name_or_path", "pad_token_id", "bos_token_id", "eos_token_id", "id2label",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersView:
    """The configuration as SGLang gets it. ``fails``: why transformers refuses it, so that no server starts.

    ``dropped`` says what was taken out, ``notes`` what was filled in or is not certain.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    fails: str = ""
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    certain: bool = True
    """False when the model type is not one whose class is known here."""

    def fresh(self) -> dict[str, Any]:
        """A copy of the values that the evaluated source may change."""
        return copy.deepcopy(self.values)


def transformers_view(raw: Mapping[str, Any]) -> TransformersView:
    """The view of a decoded config.json. Never raises."""
    return _View(raw).make()


class _View:
    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = copy.deepcopy(dict(raw))
        kind = raw.get("model_type")
        self.kind = kind if isinstance(kind, str) else ""
        self.fails = ""
        self.dropped: list[str] = []
        self.notes: list[str] = []

    def make(self) -> TransformersView:
        if not self.kind:
            self.notes.append(
                "no model_type in config.json: transformers then chooses by the folder's name, or fails"
            )
        elif self.kind not in KNOWN:
            name = sanitise(self.kind, multiline=False, limit=60)
            self.notes.append(f"what transformers' class for model_type {name} does is not known here")
        self._check_types()
        if not self.fails:
            self._count()
            self._window()
            self._layer_types()
            self._check_layer_types()
        self._nested()
        values = {**{k: v for k, v in _GEOMETRY.items() if k not in self.values}, **self.values}
        return TransformersView(
            values=values,
            unknown=_ALWAYS_THERE - set(values),
            fails=self.fails,
            dropped=tuple(self.dropped),
            notes=tuple(self.notes),
            certain=self.kind in KNOWN,
        )

    def _fail(self, field_name: str, value: Any, wanted: str) -> None:
        shown = sanitise(repr(value), multiline=False, limit=60)
        self.fails = self.fails or f"transformers refuses {field_name} {shown}: it must be {wanted}"

    def _check_types(self) -> None:
        """Fields are checked strictly: a number in quotes is refused."""
        values = self.values
        if self.kind not in KNOWN:
            return
        if "num_hidden_layers" in values and not _is_int(values["num_hidden_layers"]):
            self._fail("num_hidden_layers", values["num_hidden_layers"], "a whole number")
        if self.kind in DROPS_WINDOW and not isinstance(values.get("use_sliding_window", False), bool):
            self._fail("use_sliding_window", values["use_sliding_window"], "true or false")
        if self.kind in _FILLS_FROM_MAX_WINDOW_LAYERS and not _is_int(values.get("max_window_layers", 28)):
            self._fail("max_window_layers", values["max_window_layers"], "a whole number")
        window = values.get("sliding_window")
        if self.kind in _WINDOW_FIELD and window is not None and not _is_int(window):
            self._fail("sliding_window", window, "a whole number or null")
        types = values.get("layer_types")
        if self.kind in _TYPES_FIELD and types is not None and not _texts(types):
            self._fail("layer_types", types, "a list of texts or null")

    def _count(self) -> None:
        inner = self.values.get("text_config")
        nested = isinstance(inner, Mapping) and "num_hidden_layers" in inner
        default = _DEFAULT_LAYERS.get(self.kind)
        types = self.values.get("layer_types")
        if "num_hidden_layers" in self.values or nested:
            return
        if default is not None:
            self.values["num_hidden_layers"] = default
            self.notes.append(f"no num_hidden_layers: transformers fills in {default}")
        elif isinstance(types, list) and types:
            self.values["num_hidden_layers"] = len(types)
            self.notes.append(f"no num_hidden_layers: taken to be {len(types)}, the length of layer_types")

    def _window(self) -> None:
        values = self.values
        if self.kind in DROPS_WINDOW:
            use = values.get("use_sliding_window", False)
            window = values.get("sliding_window")
            if not use:
                if window is not None:
                    why = "is false" if "use_sliding_window" in values else "is not set, and false by default"
                    self.dropped.append(
                        "transformers takes sliding_window "
                        f"{sanitise(str(window), multiline=False, limit=20)} out: "
                        f"use_sliding_window {why} (model_type {self.kind})"
                    )
                values["sliding_window"] = None
            elif "sliding_window" not in values:
                values["sliding_window"] = 4096
                self.notes.append("transformers fills in sliding_window 4096, the default of its class")
        elif self.kind in _DEFAULT_WINDOW and "sliding_window" not in values:
            values["sliding_window"] = _DEFAULT_WINDOW[self.kind]

    def _layer_types(self) -> None:
        values = self.values
        count: Any = values.get("num_hidden_layers")
        if values.get("layer_types") is not None or not _is_int(count) or not 0 < count <= 4096:
            return
        if self.kind in _FILLS_FROM_MAX_WINDOW_LAYERS:
            begin: Any = values.get("max_window_layers", 28)
            sliding = values.get("sliding_window") is not None
            values["layer_types"] = [SLIDING if sliding and i >= begin else FULL for i in range(count)]
            if sliding and SLIDING not in values["layer_types"]:
                self.dropped.append(
                    f"transformers fills in layer_types: layers from max_window_layers {begin} on slide, "
                    f"and there are only {count}, so that all are full"
                )
            elif SLIDING in values["layer_types"]:
                self.notes.append(f"transformers fills in layer_types: layers from {begin} on slide")
        elif self.kind in _ALTERNATES:
            values["layer_types"] = [SLIDING if i % 2 == 0 else FULL for i in range(count)]
            self.notes.append("transformers fills in layer_types: every other layer slides")
        elif self.kind in _LINEAR:
            values["layer_types"] = ["linear_attention" if (i + 1) % 4 else FULL for i in range(count)]
        elif self.kind in _ALL_FULL:
            values["layer_types"] = [FULL] * count

    def _check_layer_types(self) -> None:
        """Every class refuses unknown kinds and a wrong number of them."""
        types, count = self.values.get("layer_types"), self.values.get("num_hidden_layers")
        if types is None:
            return
        if not isinstance(types, list | tuple):
            self._fail("layer_types", types, "a list")
            return
        strange = [kind for kind in types if not (isinstance(kind, str) and kind in _LAYER_KINDS)]
        if strange:
            self._fail("layer_types with", strange[0], "full_attention or sliding_attention")
        elif _is_int(count) and count != len(types):
            self.fails = self.fails or (
                f"transformers refuses layer_types with {len(types)} entries for {count} layers"
            )

    def _nested(self) -> None:
        """SGLang copies what only the nested section has to the top level."""
        inner = self.values.get("text_config")
        if isinstance(inner, Mapping):
            for key, value in inner.items():
                if key not in self.values and value is not None:
                    self.values[key] = value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
