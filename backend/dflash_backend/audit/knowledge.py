"""The best knowledge of what each layer was built with: live report, else source, else the release in
general.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_backend.audit.declared import Declared
from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.release_table import StockLayers, stock_layers
from dflash_backend.audit.report import Evidence, Strength
from dflash_backend.audit.rows import BuiltLayer
from dflash_backend.audit.source import LayerFact, SourceFacts
from dflash_backend.audit.startup_log import Reported
from dflash_backend.audit.transformers_view import TransformersView
from dflash_backend.core.errors import ConsoleError
from dflash_backend.sglang.versions import Release, parse_version, release, releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Layers as built, with their evidence; or why the start fails; or what is missing."""

    layers: tuple[BuiltLayer, ...] = ()
    fails: str = ""
    fails_evidence: Evidence | None = None
    missing: tuple[str, ...] = ()
    strength: Strength | None = None
    runner_window: int | None = None
    runner_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """The release at hand. ``problem`` says why none is known; ``unsure`` that it is none of the table."""

    text: str | None = None
    known: Release | None = None
    problem: str = ""
    unsure: str = ""


def find_version(text: str | None) -> VersionFacts:
    """The facts for a version as it is told. Never raises."""
    if not text:
        return VersionFacts(problem="the version of SGLang")
    try:
        known = release(text)
    except ConsoleError as error:
        return VersionFacts(text=text, problem=error.what)
    asked = known.version
    unsure = ""
    if asked.order > parse_version(releases()[-1]).order:
        unsure = f"SGLang {asked.text} is newer than any release known here ({releases()[-1]})"
    elif asked.unreleased:
        before = [r for r in releases() if parse_version(r).order < asked.order]
        if known.honours_layer_windows and before and not release(before[-1]).honours_layer_windows:
            unsure = (
                f"SGLang {asked.text} is a development build: whether it honours windows is not "
                "told by its number"
            )
    return VersionFacts(text=asked.text, known=known, unsure=unsure)


def built_layers(
    declared: Declared,
    view: TransformersView,
    version: VersionFacts,
    source: SourceFacts | None,
    reported: Reported | None,
    inputs: AuditInputs,
    draft_backend: str | None,
) -> Built:
    """What is known best of every layer."""
    if reported is not None:
        return _from_report(reported)
    if view.fails:
        return Built(
            fails=view.fails,
            fails_evidence=Evidence(
                strength=Strength.CONFIG,
                where=inputs.draft_config_where,
                text=f"read as transformers does: {view.fails}",
            ),
        )
    if source is not None and source.known:
        return _from_source(source, view, draft_backend)
    if source is not None and source.identity.kind != "stock":
        return Built(missing=(f"the source: {source.unknown}",))
    if inputs.source_missing:
        # The tree may have been changed by hand: what its release does in general is no fact about it.
        return Built(missing=(f"the source: {inputs.source_missing}",))
    if version.known is None:
        return Built(missing=(version.problem,))
    if version.unsure:
        return Built(missing=(f"the source of this build: {version.unsure}",))
    stock = stock_layers(version.known, view, len(declared.layers) or None)
    return _from_release(stock, version.known)


def _from_report(reported: Reported) -> Built:
    name = "the plugin in the server" if reported.by == "plugin" else "the reference engine"
    return Built(
        layers=tuple(
            BuiltLayer(
                index=one.index,
                window=one.attended,
                window_known=True,
                causal=one.causal,
                evidence=Evidence(
                    strength=Strength.PLUGIN,
                    where=reported.where,
                    text=f"{name} reports layer {one.index}: {describe(one.attended, one.causal)}",
                ),
            )
            for one in reported.layers
        ),
        strength=Strength.PLUGIN,
    )


def _from_source(source: SourceFacts, view: TransformersView, draft_backend: str | None) -> Built:
    if source.fails:
        text = f"{source.identity.text}: the constructor raises {source.fails}"
        return Built(
            fails=source.fails,
            fails_evidence=Evidence(strength=Strength.SOURCE, where=source.where, text=text),
            strength=Strength.SOURCE,
        )
    where = f"{source.where}: models/dflash.py"
    untold = _runner_not_told(source, draft_backend)
    blind = draft_backend is not None and source.backend_reads is False
    layers = []
    for one in source.layers:
        text = f"{source.identity.text}: {source.model_class} builds layer {one.index} with {_fact(one)}"
        window, known = one.window, one.window_known
        if window is not None and blind:
            window, text = None, f"{text}, which {draft_backend} never reads"
        elif window is not None and untold:
            window, known, text = None, False, f"{text}, {untold}"
        layers.append(
            BuiltLayer(
                index=one.index,
                window=window,
                window_known=known,
                causal=one.causal,
                evidence=Evidence(strength=Strength.SOURCE, where=where, text=text),
            )
        )
    missing = []
    if source.conditions:
        missing.append(f"whether {', or whether '.join(source.conditions[:3])}: the layers depend on it")
    if untold and any(one.window is not None for one in source.layers):
        missing.append(f"the draft attention backend: layers have a window, {untold}")
    return Built(
        layers=tuple(layers),
        missing=tuple(missing),
        strength=Strength.SOURCE,
        runner_window=source.runner_window,
        runner_known=source.runner_known,
    )


def _runner_not_told(source: SourceFacts, draft_backend: str | None) -> str:
    """Why a layer's window may not reach the kernel; empty when it does."""
    if draft_backend in ("fa3", "fa4"):
        return ""  # they look at the layer alone
    windows = {one.window for one in source.layers if one.window is not None}
    if (
        not windows
        or (source.runner_known and source.runner_window is not None)
        or source.runner_window is not None
    ):
        return ""
    return (
        "but the model runner is not told of it, and only fa3 and fa4 go by the layer alone"
        if source.runner_known or source.identity.kind != "stock"
        else ""
    )


def _from_release(stock: StockLayers, known: Release) -> Built:
    where = f"SGLang {known.name}"
    if stock.fails:
        return Built(
            fails=stock.fails,
            fails_evidence=Evidence(
                strength=Strength.RELEASE, where=where, text=f"its start raises: {stock.fails}"
            ),
            strength=Strength.RELEASE,
        )
    if stock.unknown:
        return Built(missing=(stock.unknown,))
    return Built(
        layers=tuple(
            BuiltLayer(
                index=one.index,
                window=one.window,
                window_known=one.window_known,
                causal=one.causal,
                evidence=Evidence(
                    strength=Strength.RELEASE,
                    where=where,
                    text=f"this release builds layer {one.index} with {_fact(one)}",
                ),
            )
            for one in stock.layers
        ),
        strength=Strength.RELEASE,
        runner_window=stock.runner_window,
        runner_known=True,
    )


def _fact(one: LayerFact) -> str:
    window = (
        "a window that depends on conditions" if not one.window_known else describe(one.window, one.causal)
    )
    return window if one.window_known else f"{window}, {_causal(one.causal)}"


def describe(window: int | None, causal: bool | None) -> str:
    """A layer's attention in words."""
    return f"{'no window' if window is None else f'window {window}'}, {_causal(causal)}"


def _causal(causal: bool | None) -> str:
    if causal is None:
        return "causality not known"
    return "causal" if causal else "not causal inside the block"
