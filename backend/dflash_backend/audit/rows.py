"""From declared and built layers to the rows of a report, and to the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_backend.audit.declared import SLIDING, UNSAID, Declared, DeclaredLayer
from dflash_backend.audit.report import Evidence, LayerRow, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLayer:
    """What a layer was built with, from whatever is known best. ``window`` None: no limit."""

    index: int
    window: int | None
    window_known: bool
    causal: bool | None
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp:
    """The window flag in force: what the draft cache keeps visible for every layer."""

    window: int
    evidence: tuple[Evidence, ...]


def make_rows(
    declared: Declared, built: Sequence[BuiltLayer], clamp: Clamp | None, config: Evidence
) -> tuple[LayerRow, ...]:
    """One row per declared layer. ``built`` may be empty: then nothing is known of what they attend to."""
    by_index = {one.index: one for one in built}
    return tuple(_row(layer, by_index.get(layer.index), clamp, config) for layer in declared.layers)


def _row(layer: DeclaredLayer, built: BuiltLayer | None, clamp: Clamp | None, config: Evidence) -> LayerRow:
    said = "all context" if layer.window is None else f"window {layer.window}"
    proof = [
        Evidence(
            strength=config.strength,
            where=config.where,
            text=f"{layer.reason}: {said if layer.known else 'window not known'}",
        )
    ]
    attended: int | None = None
    known = False
    causal = None
    reason = layer.reason
    if built is not None:
        attended, known, causal = built.window, built.window_known, built.causal
        proof.append(built.evidence)
        if clamp is not None and known and (attended is None or attended > clamp.window):
            attended = clamp.window
            proof += clamp.evidence
            reason += f"; the window flag leaves {clamp.window} tokens visible"
    return LayerRow(
        index=layer.index,
        kind=layer.kind,
        declared=layer.window,
        attended=attended,
        attended_known=known,
        causal_declared=layer.causal,
        causal=causal,
        evidence=tuple(proof),
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Layers with a fault, by kind of fault; one layer may have two."""

    ignored: tuple[int, ...] = ()
    """A window is declared and the layer attends to everything."""
    differs: tuple[int, ...] = ()
    """A window is declared and another one applies."""
    clamped: tuple[int, ...] = ()
    """No window is declared and one applies."""
    causality: tuple[int, ...] = ()
    """Causality inside the block is not what is declared."""
    unknown: tuple[int, ...] = ()


def find_faults(declared: Declared, rows: Sequence[LayerRow]) -> Faults:
    """Window and causality as separate faults, per layer."""
    layers = {layer.index: layer for layer in declared.layers}

    def where(test: str) -> tuple[int, ...]:
        return tuple(row.index for row in rows if test in _faults_of(layers[row.index], row))

    return Faults(
        ignored=where("ignored"),
        differs=where("differs"),
        clamped=where("clamped"),
        causality=where("causality"),
        unknown=where("unknown"),
    )


def _faults_of(layer: DeclaredLayer, row: LayerRow) -> set[str]:
    faults = set()
    slides = layer.kind in (SLIDING, UNSAID)
    if not row.attended_known:
        faults.add("unknown")
    elif slides and row.attended is None:
        faults.add("ignored")
    elif slides and not layer.known:
        faults.add("unknown")
    elif slides and row.attended != layer.window:
        faults.add("differs")
    elif not layer.known and not slides:
        faults.add("unknown")
    elif not slides and row.attended is not None:
        faults.add("clamped")
    if row.causal is None or layer.causal is None:
        if row.attended_known and layer.known:
            faults.add("unknown")
    elif row.causal != layer.causal:
        faults.add("causality")
    return faults


def judge(
    declared: Declared,
    rows: Sequence[LayerRow],
    faults: Faults,
    *,
    dropped: bool,
    by_flag: bool,
    honours: bool,
) -> Verdict:
    """The verdict for layers whose attention is known.

    ``dropped``: the config loses its window on the way to SGLang. ``by_flag``: windows on full layers come
    from the window flag. ``honours``: the tree builds declared windows, so that the flag only adds a limit.
    """
    if not declared.slides:
        return Verdict.CLAMPED if faults.clamped and not by_flag else Verdict.NOT_DECLARED
    if faults.unknown:
        return Verdict.UNKNOWN
    if faults.ignored:
        return Verdict.DECLARED_BUT_DROPPED if dropped else Verdict.IGNORED
    if faults.differs or faults.causality or (faults.clamped and not (by_flag and honours)):
        return Verdict.CLAMPED
    return Verdict.ENFORCED
