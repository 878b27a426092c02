"""What a stock release does with a drafter's config, known without reading its source.

Read from the sources of 0.5.11 to 0.5.23; used where only a version is known, and as such the weakest
evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_backend.audit.declared import FULL, SLIDING
from dflash_backend.audit.source import DEFAULT_CLASS, LayerFact
from dflash_backend.audit.transformers_view import TransformersView
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.versions import Release, parse_version

CLASSES: Mapping[str, str] = {
    "DFlashDraftModel": "0.5.11",
    "DFlashLagunaForCausalLM": "0.5.15",
    "MuseGlimmerAssistantModel": "0.5.18",
    "DFlash2DraftModel": "0.5.19",
    "DFlash2BeamDraftModel": "0.5.23",
    "MiniMaxDFlash2DraftModel": "0.5.23",
}
"""Draft model classes and the first release with each."""

_FROM_SWA_FIELD = "0.5.19"
"""First release that takes ``dflash_config.swa_window_size`` of the Nemotron 3.5 layout."""

_CAUSAL_FULL = "0.5.17"
"""First release that makes full layers causal for ``is_causal: true``; later ones follow it for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockLayers:
    """Layers as a stock release builds them, or why it does not start."""

    layers: tuple[LayerFact, ...] = ()
    fails: str = ""
    unknown: str = ""
    runner_window: int | None = None


def stock_layers(release: Release, view: TransformersView, count: int | None) -> StockLayers:
    """What ``release`` makes of a config with ``count`` layers. Never raises."""
    missing = _class_problem(release, view.values.get("architectures"))
    if missing:
        return StockLayers(fails=missing)
    if count is None:
        return StockLayers(unknown="the number of layers")
    if not release.honours_layer_windows:
        return StockLayers(
            layers=tuple(
                LayerFact(index=i, window=None, window_known=True, causal=False) for i in range(count)
            )
        )
    types = _first(view.values, "layer_types")
    if types is None:
        return StockLayers(
            layers=tuple(
                LayerFact(index=i, window=None, window_known=True, causal=False) for i in range(count)
            )
        )
    if isinstance(types, str) or not isinstance(types, Sequence):
        return StockLayers(fails="DFLASH config.layer_types must be a sequence of attention type strings.")
    if len(types) < count:
        return StockLayers(fails=f"config.layer_types has {len(types)} entries for {count} layers")
    left: int | None = None
    if SLIDING in types[:count]:
        window = _first(view.values, "sliding_window")
        if window is None and _since(release, _FROM_SWA_FIELD) and _is_nemotron(view.values):
            dflash = view.values.get("dflash_config")
            window = dflash.get("swa_window_size") if isinstance(dflash, Mapping) else None
        if window is None:
            return StockLayers(fails="DFLASH sliding_attention layers require config.sliding_window.")
        try:
            left = int(window) - 1
        except (TypeError, ValueError, OverflowError):
            shown = sanitise(repr(window), multiline=False, limit=40)
            return StockLayers(fails=f"sliding_window {shown} is no number")
    said = _explicit_causality(view.values)
    layers = []
    for index in range(count):
        kind = types[index]
        if kind not in (FULL, SLIDING):
            shown = sanitise(str(kind), multiline=False, limit=40)
            return StockLayers(fails=f"Unsupported DFLASH draft layer type {shown}")
        # A layer keeps the positions before the query; 0 of them is stored as "no window".
        bounded = kind == SLIDING and left is not None and left > 0
        layers.append(
            LayerFact(
                index=index,
                window=left + 1 if bounded and left is not None else None,
                window_known=True,
                causal=_causal(release, kind, said),
            )
        )
    return StockLayers(layers=tuple(layers), runner_window=left)


def _causal(release: Release, kind: str, said: bool | None) -> bool:
    """Causality inside the block: by the kind of layer, and by ``is_causal`` where a release reads it."""
    if said is not None and release.explicit_causal:
        return said
    if said and kind == FULL and _since(release, _CAUSAL_FULL):
        return True
    return kind == SLIDING


def _class_problem(release: Release, architectures: Any) -> str:
    names = (
        [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    )
    wanted = names[0] if names else DEFAULT_CLASS
    first = CLASSES.get(wanted)
    shown = sanitise(wanted, multiline=False, limit=80)
    if first is None:
        return f"{shown} is no DFLASH draft class of SGLang {release.name}"
    if not _since(release, first):
        return f"{shown} came with SGLang {first}; {release.name} has no such draft class"
    return ""


def _since(release: Release, first: str) -> bool:
    return parse_version(release.name).order >= parse_version(first).order


def _first(values: Mapping[str, Any], name: str) -> Any:
    """As SGLang reads it: the nested section when it has the field, even as null, else the top level."""
    inner = values.get("text_config")
    if isinstance(inner, Mapping) and name in inner:
        return inner[name]
    return values.get(name)


def _explicit_causality(values: Mapping[str, Any]) -> bool | None:
    # The nested section is a plain dictionary there, whose entries are no attributes.
    if values.get("text_config") is not None:
        return None
    value = values.get("is_causal")
    return None if value is None else bool(value)


def _is_nemotron(values: Mapping[str, Any]) -> bool:
    architectures = values.get("architectures") or []
    quantization = values.get("quantization_config") or {}
    dflash = values.get("dflash_config") or {}
    if (
        not isinstance(architectures, list)
        or not isinstance(quantization, Mapping)
        or not isinstance(dflash, Mapping)
    ):
        return False
    ids = dflash.get("target_layer_ids", values.get("target_layer_ids"))
    aux = values.get("eagle_aux_hidden_state_layer_ids")
    return bool(
        {"DFlashDraftModel", "Qwen3DSparkModel"} & {str(name) for name in architectures}
        and values.get("has_embed_tokens")
        and not values.get("has_lm_head")
        and quantization.get("quant_algo") == "W4A16_NVFP4"
        and isinstance(ids, list)
        and isinstance(aux, list)
        and ids
        and [x + 1 for x in ids if isinstance(x, int)] == aux
        and dflash.get("sample_from_anchor", values.get("sample_from_anchor", True)) is False
    )
