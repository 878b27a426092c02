"""What each draft layer attends to: the drafter's config read as SGLang 0.5.14 and later read it.

``sliding_attention``: the query and the ``sliding_window - 1`` tokens before it, causal, also inside the
draft block. ``full_attention``: everything, not causal. No ``layer_types``: every layer is full.

SGLang sees the config after transformers has interpreted it, which can lose a window (see ``lost_window``).
A config that cannot be served as it was meant raises ``WindowError``; nothing is ever guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLIDING = "sliding_attention"
FULL = "full_attention"


class WindowError(ValueError):
    """A drafter config whose windows cannot be honoured; the message says which field and what to do."""


@dataclass(frozen=True)
class LayerWindow:
    """One draft layer. ``window`` counts the query itself, as in config.json; None is no limit."""

    layer: int
    window: int | None
    causal: bool

    @property
    def window_left(self) -> int:
        """Tokens visible before the query, as SGLang stores it: -1 is no limit."""
        return -1 if self.window is None else self.window - 1


def field(config: Any, name: str, default: Any = None) -> Any:
    """A field of a config given as a mapping or as an object."""
    if isinstance(config, Mapping):
        return config.get(name, default)
    return getattr(config, name, default)


def text_config(config: Any) -> Any:
    """The part of a config that describes the text model: ``text_config`` when there is one."""
    nested = field(config, "text_config")
    if nested is not None:
        return nested
    resolve = getattr(config, "get_text_config", None)
    if callable(resolve):
        nested = resolve()
    return config if nested is None else nested


def _first(config: Any, name: str) -> Any:
    """A field of the text config, else of the config itself."""
    missing = object()
    value = field(text_config(config), name, missing)
    return field(config, name) if value is missing else value


def explicit_causality(config: Any) -> bool | None:
    """The config's word on causality for all layers (``is_causal``, ``dflash_config.causal``), if any."""
    for value in (_first(config, "is_causal"), field(field(config, "dflash_config") or {}, "causal")):
        if isinstance(value, bool):
            return value
    return None


def layer_types(config: Any) -> Sequence[str] | None:
    """The config's ``layer_types``, None when there are none. Raises WindowError when it is no list."""
    types = _first(config, "layer_types")
    if types is None:
        return None
    if isinstance(types, str) or not isinstance(types, Sequence):
        raise WindowError(f"layer_types must be a list of attention types, one per layer, not {types!r}")
    return types


def attended(config: Any) -> list[LayerWindow]:
    """The window and causality of every draft layer. Raises WindowError."""
    layers = _first(config, "num_hidden_layers")
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise WindowError(f"num_hidden_layers must be a positive number, not {layers!r}")
    types = layer_types(config)
    if types is None:
        return [LayerWindow(i, None, causal=False) for i in range(layers)]
    if len(types) < layers:
        raise WindowError(f"layer_types names {len(types)} layers, but num_hidden_layers is {layers}")
    return [_layer(config, i, types[i]) for i in range(layers)]


def _layer(config: Any, index: int, kind: str) -> LayerWindow:
    if kind == FULL:
        return LayerWindow(index, None, causal=False)
    if kind != SLIDING:
        raise WindowError(f"layer_types[{index}] is {kind!r}; known are {SLIDING} and {FULL}")
    value = _first(config, "sliding_window")
    if value is None:
        raise WindowError(
            f"layer_types[{index}] is {SLIDING}, but there is no sliding_window "
            "(transformers drops it for Qwen configs unless use_sliding_window is true)"
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise WindowError(f"sliding_window must be a number of tokens, not {value!r}")
    if value < 2:
        # A window of 1 leaves 0 tokens to the left, which SGLang's layers store as "no window".
        raise WindowError(f"sliding_window is {value}; SGLang cannot attend to fewer than 2 tokens")
    return LayerWindow(index, value, causal=True)


def lost_window(raw: Mapping[str, Any], seen: Any) -> str | None:
    """Why a window written in config.json would silently become full attention; None when it would not.

    ``raw`` is config.json as it was written, ``seen`` the config that SGLang works with.
    """
    written = layer_types(raw)
    read = layer_types(seen)
    window = _first(raw, "sliding_window")
    if written is not None:
        if read is None or list(written) != list(read):
            return f"config.json has layer_types {list(written)}, but SGLang sees {read and list(read)}"
        if SLIDING in written and window != _first(seen, "sliding_window"):
            # Left out, transformers fills in a window of its own: 4096 for a Qwen3 config.
            had = "no sliding_window" if window is None else f"sliding_window {window}"
            return f"config.json has {had}, but SGLang sees {_first(seen, 'sliding_window')}: write it down"
        return None
    # bool is an int: `sliding_window: true` is not a number of tokens, and `attended` says so where it
    # matters.
    if not isinstance(window, int) or isinstance(window, bool) or window <= 0:
        return None
    if _first(raw, "use_sliding_window") is False or (read is not None and SLIDING in read):
        return None
    return (
        f"config.json has sliding_window {window}, but no layer_types, and SGLang makes every layer full: "
        "write layer_types into config.json, or use_sliding_window false if full attention is meant"
    )


def contradiction(config: Any, layers: Sequence[LayerWindow]) -> str | None:
    """Why the config's own word on causality is not what ``layers`` do; None when it is, or says nothing."""
    wanted = explicit_causality(config)
    wrong = [layer.layer for layer in layers if wanted is not None and layer.causal != wanted]
    if not wrong:
        return None
    return (
        f"config.json says is_causal {str(wanted).lower()}, which layers {wrong} would not follow: "
        "SGLang honours it for every layer from 0.5.19 on"
    )


def describe(layers: Sequence[LayerWindow]) -> str:
    """One phrase for the log, runs of equal layers joined: ``0-4 sliding 2048 causal, 5 full``."""
    parts: list[str] = []
    start = 0
    for i, layer in enumerate(layers):
        last = i + 1 == len(layers)
        if not last and (layers[i + 1].window, layers[i + 1].causal) == (layer.window, layer.causal):
            continue
        name = f"{layers[start].layer}" if start == i else f"{layers[start].layer}-{layer.layer}"
        window = "full" if layer.window is None else f"sliding {layer.window}"
        parts.append(f"{name} {window}{' causal' if layer.causal else ''}")
        start = i + 1
    return ", ".join(parts)
