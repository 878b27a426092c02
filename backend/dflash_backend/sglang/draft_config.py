"""Reader of a drafter's config.json in the forms that are about: z-lab's, nested, Speculators', odd ones.

It says what is declared; what a given SGLang does with it is the audit's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_backend.sglang.decode import (
    FormatError,
    JsonInput,
    as_mapping,
    decode_json,
    flag,
    integer,
    items,
    mapping_or_empty,
    text,
)

ConfigForm = Literal["dflash", "speculators", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """What a drafter's config.json declares. None: not said, or said in a form that is no value.

    ``windows`` has one entry per layer, in tokens, as ``layer_types`` and ``sliding_window`` declare them:
    None means full attention. It is empty when the number of layers or a layer's kind is not known.
    ``notes`` name what is odd.
    """

    form: ConfigForm
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    layers: int | None = None
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None
    is_causal: bool | None = None
    windows: tuple[int | None, ...] = ()
    block_size: int | None = None
    mask_token: str | None = None
    mask_token_id: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    target_layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    context: int | None = None
    projector: str | None = None
    verifier: str | None = None
    notes: tuple[str, ...] = ()


_SECTIONS = ("text_config", "transformer_layer_config", "dflash_config")


def is_draft_config(value: object) -> bool:
    """True for decoded JSON that looks like the config.json of a model of any kind."""
    if not isinstance(value, Mapping):
        return False
    named = {
        "architectures",
        "dflash_config",
        "speculators_model_type",
        "transformer_layer_config",
        "layer_types",
    }
    return bool(named & set(value)) or {"model_type", "num_hidden_layers"} <= set(value)


def read_draft_config(data: JsonInput) -> DraftConfig:
    """Reads a config.json. Raises FormatError when it is no JSON object or no model's configuration."""
    top = as_mapping(decode_json(data, "the drafter's config.json"), "the drafter's config.json")
    if not is_draft_config(top) and "block_size" not in top:
        raise FormatError(
            "this is no model's config.json",
            next_step="give the config.json out of the drafter's own folder",
        )
    return _Reader(top).read()


class _Reader:
    def __init__(self, top: Mapping[str, object]) -> None:
        self.top = top
        self.dflash = mapping_or_empty(top.get("dflash_config"))
        self.inner = mapping_or_empty(top.get("text_config")) or mapping_or_empty(
            top.get("transformer_layer_config")
        )
        self.notes: list[str] = []

    def read(self) -> DraftConfig:
        architectures = tuple(a for item in items(self.top.get("architectures")) if (a := text(item, 200)))
        speculators = text(self.top.get("speculators_model_type"), 60)
        form = self._form(architectures, speculators)
        layers = integer(self._find("num_hidden_layers"))
        kinds = self._layer_types(layers)
        window = self._window()
        return DraftConfig(
            form=form,
            architectures=architectures,
            model_type=text(self.top.get("model_type") or self.inner.get("model_type"), 100),
            layers=layers,
            layer_types=kinds,
            sliding_window=window,
            use_sliding_window=flag(self._find("use_sliding_window")),
            max_window_layers=integer(self._find("max_window_layers")),
            is_causal=self._causal(),
            windows=self._windows(layers, kinds, window),
            block_size=self._block_size(form),
            mask_token=text(self._draft("mask_token"), 100),
            mask_token_id=integer(self._draft("mask_token_id")),
            target_layer_ids=self._target_ids(),
            target_layers=integer(self._draft("num_target_layers")),
            hidden_size=integer(self._find("hidden_size")),
            heads=integer(self._find("num_attention_heads")),
            kv_heads=integer(self._find("num_key_value_heads")),
            head_dim=integer(self._find("head_dim")),
            vocab_size=integer(self._find("vocab_size")),
            context=integer(self._find("max_position_embeddings")),
            projector=text(self._draft("projector_type"), 60),
            verifier=self._verifier(),
            notes=tuple(self.notes),
        )

    def _find(self, key: str) -> object:
        """A model setting: the nested section first, as SGLang reads it, else the top level."""
        value = self.inner.get(key)
        return self.top.get(key) if value is None else value

    def _draft(self, key: str) -> object:
        """A DFlash setting: its own section first, else the top level."""
        value = self.dflash.get(key)
        return self.top.get(key) if value is None else value

    def _form(self, architectures: tuple[str, ...], speculators: str | None) -> ConfigForm:
        if speculators:
            self.notes.append(f"Speculators format ({speculators}): SGLang up to 0.5.23 does not read it")
            return "speculators"
        evidence = (
            self.dflash
            or any("dflash" in a.lower() or "draft" in a.lower() for a in architectures)
            or any(key in self.top for key in ("block_size", "target_layer_ids", "mask_token_id"))
        )
        if evidence:
            return "dflash"
        self.notes.append("nothing of a drafter in it: this looks like a target model's config.json")
        return "target"

    def _layer_types(self, layers: int | None) -> tuple[str, ...] | None:
        value = self._find("layer_types")
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.notes.append("layer_types is not a list: SGLang refuses it at start")
            return None
        kinds = tuple(text(item, 60) or "?" for item in value)
        strange = sorted({k for k in kinds if k not in ("full_attention", "sliding_attention")})
        if strange:
            self.notes.append(f"unknown kinds in layer_types: {', '.join(strange[:5])}")
        if layers is not None and len(kinds) != layers:
            self.notes.append(f"layer_types has {len(kinds)} entries for {layers} layers")
        return kinds

    def _window(self) -> int | None:
        value = self._find("sliding_window")
        window = integer(value)
        if value is not None and (window is None or window <= 0):
            self.notes.append("sliding_window is no positive whole number")
            return None
        return window

    def _windows(
        self, layers: int | None, kinds: tuple[str, ...] | None, window: int | None
    ) -> tuple[int | None, ...]:
        if kinds is None:
            if window is not None:
                self.notes.append("sliding_window without layer_types: which layers it is for is not said")
            return (None,) * layers if layers is not None and 0 < layers <= 1000 and window is None else ()
        sliding = "sliding_attention" in kinds
        if sliding and window is None:
            self.notes.append("sliding layers without a sliding_window: SGLang refuses it at start")
            return ()
        if window is not None and not sliding:
            self.notes.append("sliding_window is set but no layer slides: it is unused")
        if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
            return ()
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

    def _causal(self) -> bool | None:
        for value in (self.top.get("is_causal"), self.dflash.get("causal"), self.inner.get("is_causal")):
            if (causal := flag(value)) is not None:
                return causal
        other = flag(self.top.get("sliding_window_non_causal"))
        return None if other is None else not other

    def _block_size(self, form: ConfigForm) -> int | None:
        size = integer(self.top.get("block_size"))
        inner = integer(self.dflash.get("block_size"))
        if size is not None and inner is not None and size != inner:
            self.notes.append(f"two block sizes: {size} at the top, {inner} in dflash_config")
        if size is None:
            size = inner
        if size is None and form == "dflash":
            self.notes.append("no block_size: SGLang warns and takes 16")
        return size

    def _target_ids(self) -> tuple[int, ...] | None:
        for key in ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"):
            value = self._draft(key)
            if isinstance(value, list | tuple):
                ids = [integer(item) for item in value]
                if all(i is not None for i in ids):
                    return tuple(i for i in ids if i is not None)
                self.notes.append(f"{key} holds something else than whole numbers")
        return None

    def _verifier(self) -> str | None:
        verifier = mapping_or_empty(mapping_or_empty(self.top.get("speculators_config")).get("verifier"))
        return text(verifier.get("name_or_path"), 300)
