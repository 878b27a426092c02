"""Statements about the installed tree, the plugin, the release and a measurement."""

from __future__ import annotations

from dflash_backend.audit.findings import (
    FindingInputs,
    about_config,
    about_flag,
    about_layers,
    about_log,
    about_start,
    say,
)
from dflash_backend.audit.release_table import stock_layers
from dflash_backend.audit.report import AuditFinding, Evidence, Strength, Verdict

_CODES = {"stock": "source-stock", "hand-patched": "source-patched", "unknown": "source-unknown"}


def collect_findings(given: FindingInputs) -> list[AuditFinding]:
    """All findings, the weightiest first."""
    found = [
        *about_config(given),
        *about_start(given),
        *about_layers(given),
        *about_flag(given),
        *about_log(given),
        *about_source(given),
        *about_plugin(given),
        *about_version(given),
        *about_measurement(given),
    ]
    order = {"gap": 0, "warning": 1, "ok": 2, "info": 3}
    return sorted(found, key=lambda finding: order[finding.severity])


def about_source(given: FindingInputs) -> list[AuditFinding]:
    """What the tree is, and where model, runner and backend do not agree."""
    source = given.source
    if source is None:
        return []
    proof = Evidence(strength=Strength.SOURCE, where=source.where, text=source.identity.text)
    kind = source.identity.kind
    found = [
        say(
            "info" if kind == "stock" else "warning",
            _CODES[kind],
            f"the installed SGLang is {source.identity.text}",
            proof,
        )
    ]
    if source.unknown:
        found.append(say("warning", "source-not-followed", source.unknown, proof))
    if source.may_fail:
        text = f"under conditions that are not known here the start fails: {source.may_fail[0]}"
        found.append(say("info", "start-may-fail", text, proof))
    windows = [one.window for one in source.layers if one.window is not None]
    if windows and source.runner_known and source.runner_window != max(windows) - 1:
        told = "no window" if source.runner_window is None else f"a window of {source.runner_window + 1}"
        text = (
            f"layers are built with a window of {max(windows)}, but the model runner is told "
            f"{told}: attention backends other than fa3 and fa4 prepare their tables by the runner's"
        )
        found.append(say("warning", "runner-not-told", text, proof))
    if not windows and source.layers and source.runner_window is not None:
        text = (
            f"the model tells the runner a window of {source.runner_window + 1}, but no layer is "
            "built with one"
        )
        found.append(say("warning", "window-exposed-not-built", text, proof))
    if source.backend_reads is False:
        text = f"the draft attention backend {given.draft_backend} of this tree never reads a layer's window"
        found.append(say("gap", "backend-ignores-window", text, proof))
    for path, problem in list(source.problems.items())[:5]:
        found.append(say("info", "source-file", f"{path}: {problem}", proof))
    told_version = given.version.known.name if given.version.known else None
    if told_version and source.release and source.identity.release not in (None, told_version):
        text = f"the version is said to be {told_version}, the source is {source.identity.text}"
        found.append(say("warning", "version-mismatch", text, proof))
    return found


def about_plugin(given: FindingInputs) -> list[AuditFinding]:
    """What the plugin reports, or that it is installed and silent."""
    if given.reported is not None and given.reported.by == "plugin":
        mode = given.reported.mode or "not said"
        proof = Evidence(strength=Strength.PLUGIN, where=given.reported.where, text=f"mode {mode}")
        note = f": {given.reported.note}" if given.reported.note else ""
        text = f"the plugin in the server reports its layers, mode {mode}{note}"
        return [say("info", "plugin-reports", text, proof)]
    plugin = given.source.plugin if given.source is not None else None
    if plugin is None:
        return []
    if given.log.runner is not None or given.inputs.server_info is not None:
        text = (
            f"the plugin {plugin} is installed, but this server reports nothing of it: it was "
            "started before, or the plugin is switched off"
        )
        return [say("warning", "plugin-silent", text)]
    text = f"the plugin {plugin} is installed; the log of a start tells what it does"
    return [say("info", "plugin-installed", text)]


def about_version(given: FindingInputs) -> list[AuditFinding]:
    """What a version number alone says."""
    found = []
    known = given.version.known
    if given.version.problem and given.version.text:
        found.append(say("warning", "version-unknown", given.version.problem))
    if known is None:
        return found
    found += [say("info", "version-note", note) for note in known.notes]
    if given.built.strength is Strength.RELEASE:
        text = (
            "what the layers attend to is known of this release in general: the installed files were not read"
        )
        found.append(say("info", "release-only", text))
    elif given.inputs.source_missing and not given.built.layers and not given.declared.problem:
        stock = stock_layers(known, given.view, len(given.declared.layers) or None)
        slides = any(layer.window is not None for layer in stock.layers)
        words = (
            f"its start fails ({stock.fails})"
            if stock.fails
            else "it builds windows"
            if slides
            else "it builds no windows"
        )
        text = (
            f"an unchanged SGLang {known.name} does this with the config: {words}; whether this one "
            "is unchanged is not known"
        )
        proof = Evidence(strength=Strength.RELEASE, where=f"SGLang {known.name}", text=words)
        found.append(say("info", "release-says", text, proof))
    return found


def about_measurement(given: FindingInputs) -> list[AuditFinding]:
    """What a measurement showed, and whether the rest agrees."""
    if not given.inputs.measured:
        return []
    verdict = given.inputs.measured_verdict or "not distinguishable"
    clear = verdict in ("enforced", "ignored") and given.verdict is not Verdict.UNKNOWN
    against = clear and (verdict == "enforced") != (given.verdict is Verdict.ENFORCED)
    if against:
        text = f"measured: {verdict}, while the rest says {given.verdict}"
        return [say("warning", "measured-contradicts", text, *given.inputs.measured)]
    return [say("info", "measured", f"measured: {verdict}", *given.inputs.measured)]
