"""What a drafter's config.json declares, per layer: window and causality, with the reason.

The meaning of the fields, not what a given SGLang makes of them: that is ``transformers_view`` and
``source``. A window counts positions and includes the query's own. In DFlash a sliding layer is causal inside
the block and a full layer is not, unless the config says ``is_causal``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.decode import clean_json, decode_json, flag, integer, mapping_or_empty, text
from dflash_backend.sglang.draft_config import DraftConfig, read_draft_config

SLIDING = "sliding_attention"
FULL = "full_attention"
UNSAID = "not said"
"""Kind of a layer of which the config does not say whether it slides."""
MAX_CONFIG_BYTES = 8_000_000
"""A config.json is some kilobytes; what is larger is none."""
MAX_LAYERS = 512
_OWN_NOTES = ("sliding", "layer_types", "unknown kinds")
"""Notes of the plain reader about windows: here they are said with the release in mind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredLayer:
    """One layer as declared. ``window`` None with ``known``: the whole context."""

    index: int
    kind: str
    window: int | None
    known: bool
    causal: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a config declares. ``problem`` says why there is nothing; ``raw`` is the decoded file."""

    config: DraftConfig | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[DeclaredLayer, ...] = ()
    window: int | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    missing: str = ""
    """What would have to be known for the layers, when the file can be read but does not say it."""

    @property
    def slides(self) -> bool:
        """True when some layer is declared to slide."""
        return any(layer.window is not None or not layer.known for layer in self.layers)


def read_declared(data: bytes | str | Mapping[str, object], where: str = "config.json") -> Declared:
    """Reads a config.json in any of its forms. Never raises: what is wrong is in ``problem``."""
    if isinstance(data, bytes | str) and len(data) > MAX_CONFIG_BYTES:
        return Declared(problem=f"{where} is {len(data) / 1e6:.0f} MB: no config.json is so large")
    try:
        raw = decode_json(data, where)
        clean_json(raw, where)  # refuses what is nested too deeply
        config = read_draft_config(raw if isinstance(raw, Mapping | list) else str(data))
    except ConsoleError as error:
        return Declared(problem=error.what)
    except RecursionError:
        return Declared(problem=f"{where} is nested too deeply")
    assert isinstance(raw, Mapping)
    return _Reader(raw, config).read()


class _Reader:
    def __init__(self, raw: Mapping[str, Any], config: DraftConfig) -> None:
        self.raw = raw
        self.config = config
        self.inner = mapping_or_empty(raw.get("text_config")) or mapping_or_empty(
            raw.get("transformer_layer_config")
        )
        self.dflash = mapping_or_empty(raw.get("dflash_config"))
        self.notes = [note for note in config.notes if not note.startswith(_OWN_NOTES)]

    def read(self) -> Declared:
        window, window_reason = self._window()
        kinds, missing = self._kinds(window)
        layers = tuple(
            self._layer(index, kind, reason, window, window_reason)
            for index, (kind, reason) in enumerate(kinds)
        )
        return Declared(
            config=self.config,
            raw=self.raw,
            layers=layers,
            window=window,
            notes=tuple(dict.fromkeys(self.notes)),
            missing=missing,
        )

    def _find(self, key: str) -> tuple[Any, str]:
        """A setting and where it stands: nested first, then the top level, then ``dflash_config``."""
        for section, name in ((self.inner, self._nested()), (self.raw, ""), (self.dflash, "dflash_config.")):
            if section.get(key) is not None:
                return section[key], f"{name}{key}"
        return None, key

    def _nested(self) -> str:
        return "text_config." if self.raw.get("text_config") else "transformer_layer_config."

    def _window(self) -> tuple[int | None, str]:
        for key in ("sliding_window", "swa_window_size"):
            value, where = self._find(key)
            if value is None:
                continue
            number = _window_number(value)
            shown = sanitise(repr(value), multiline=False, limit=40)
            if number is None or number <= 0:
                self.notes.append(f"{where} is {shown}: no positive whole number")
                return None, f"{where} is {shown}"
            if not isinstance(value, int) or isinstance(value, bool):
                self.notes.append(f"{where} is {shown}: a number was expected")
            return number, f"{where} {number}"
        return None, "no sliding_window"

    def _kinds(self, window: int | None) -> tuple[list[tuple[str, str]], str]:
        """Kind and reason of every layer, and what is missing when there are none."""
        value, where = self._find("layer_types")
        count = self.config.layers
        if count is None:
            inner = self._find("num_hidden_layers")[0]
            count = integer(inner) if not isinstance(inner, str) else _digits(inner)
        if isinstance(value, list | tuple):
            if len(value) > MAX_LAYERS:
                return [], f"{where} has {len(value)} entries"
            kinds = [(text(kind, 60) or "?", f"{where}[{i}]") for i, kind in enumerate(value)]
            if count is not None and len(kinds) != count:
                self.notes.append(f"{where} has {len(kinds)} entries for {count} layers: the start fails")
                kinds = kinds[: max(0, count)] + [("?", f"{where} ends before it")] * min(
                    MAX_LAYERS, max(0, count - len(kinds))
                )
            return kinds, "" if kinds else f"{where} is empty"
        if value is not None:
            return [], f"{where} is no list"
        if count is None or not 0 < count <= MAX_LAYERS:
            return [], "num_hidden_layers, or layer_types"
        return self._without_types(count, window), ""

    def _without_types(self, count: int, window: int | None) -> list[tuple[str, str]]:
        """Layers of a config that names no kinds."""
        use = flag(self._find("use_sliding_window")[0])
        if window is None:
            return [(FULL, "no layer_types and no sliding_window")] * count
        if use is False:
            return [(FULL, "use_sliding_window is false")] * count
        begin = integer(self._find("max_window_layers")[0])
        if use and begin is not None and 0 <= begin < count:
            return [
                (SLIDING if i >= begin else FULL, f"use_sliding_window, max_window_layers {begin}")
                for i in range(count)
            ]
        return [(UNSAID, "no layer_types: sliding_window stands for all layers")] * count

    def _layer(
        self, index: int, kind: str, reason: str, window: int | None, window_reason: str
    ) -> DeclaredLayer:
        causal, because = self._causal(kind)
        if kind in (SLIDING, UNSAID):
            known = window is not None
            return DeclaredLayer(
                index=index, kind=kind, window=window, known=known, causal=causal,
                reason=f"{reason}, {window_reason}{because}",
            )  # fmt: skip
        known = kind == FULL
        return DeclaredLayer(
            index=index, kind=kind, window=None, known=known, causal=causal if known else None,
            reason=f"{reason}{because}" if known else f"{reason} is no kind that SGLang knows",
        )  # fmt: skip

    def _causal(self, kind: str) -> tuple[bool | None, str]:
        """Causality inside the block: the config's word, else the rule of DFlash."""
        for section, name in (
            (self.inner, f"{self._nested()}is_causal"),
            (self.raw, "is_causal"),
        ):
            if (value := flag(section.get("is_causal"))) is not None:
                return value, f", {name} {str(value).lower()}"
        if (value := flag(self.dflash.get("causal"))) is not None:
            return value, f", dflash_config.causal {str(value).lower()}"
        if (
            kind in (SLIDING, UNSAID)
            and (other := flag(self.raw.get("sliding_window_non_causal"))) is not None
        ):
            return not other, f", sliding_window_non_causal {str(other).lower()}"
        return kind in (SLIDING, UNSAID), ""


def _window_number(value: Any) -> int | None:
    return _digits(value) if isinstance(value, str) else integer(value)


def _digits(value: str) -> int | None:
    clean = value.strip()
    return int(clean) if clean.isascii() and clean.isdigit() and len(clean) <= 12 else None
