"""The statements of an audit, each with its evidence: faults per layer, contradictions, what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_backend.audit import costs
from dflash_backend.audit.arguments import Arguments
from dflash_backend.audit.declared import Declared
from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.knowledge import Built, VersionFacts
from dflash_backend.audit.report import AuditFinding, Evidence, LayerRow, Strength, Verdict
from dflash_backend.audit.rows import Faults
from dflash_backend.audit.source import SourceFacts
from dflash_backend.audit.startup_log import LogFacts, Reported
from dflash_backend.audit.transformers_view import TransformersView


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingInputs:
    """Everything that statements are made from."""

    inputs: AuditInputs
    declared: Declared
    view: TransformersView
    version: VersionFacts
    source: SourceFacts | None
    arguments: Arguments
    log: LogFacts
    reported: Reported | None
    built: Built
    rows: Sequence[LayerRow]
    faults: Faults
    verdict: Verdict
    flag: int | None
    """The window flag in force; None: none, or it is not used."""
    flag_asked: int | None
    flag_known: bool
    honours: bool
    draft_backend: str | None
    speculators: bool


def collect_findings(given: FindingInputs) -> list[AuditFinding]:
    """All findings, the weightiest first."""
    found = [
        *_config(given),
        *_start(given),
        *_layers(given),
        *_flag(given),
        *_log(given),
        *_source(given),
        *_plugin(given),
        *_version(given),
        *_measured(given),
    ]
    order = {"gap": 0, "warning": 1, "ok": 2, "info": 3}
    return sorted(found, key=lambda finding: order[finding.severity])


def numbers(indices: Sequence[int]) -> str:
    """Layer numbers with runs joined: ``layers 0-4, 6``."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"layer {text}" if len(indices) == 1 else f"layers {text}"


def _config_evidence(given: FindingInputs, text: str) -> tuple[Evidence, ...]:
    return (Evidence(strength=Strength.CONFIG, where=given.inputs.draft_config_where, text=text),)


def _config(given: FindingInputs) -> list[AuditFinding]:
    found = []
    declared = given.declared
    if declared.problem:
        found.append(AuditFinding(severity="warning", code="config-unreadable", text=declared.problem))
        return found
    if given.speculators:
        text = "the drafter is in Speculators format: SGLang up to 0.5.23 does not read it (vLLM does)"
        found.append(
            AuditFinding(
                severity="gap", code="speculators-format", text=text,
                evidence=_config_evidence(given, "speculators_model_type is set"),
                remedy="serve a drafter whose config.json has the fields of z-lab's drafters",
            )
        )  # fmt: skip
    for text in given.view.dropped:
        if declared.slides:
            found.append(
                AuditFinding(
                    severity="gap", code="dropped-by-transformers", text=text,
                    evidence=_config_evidence(given, text),
                    remedy='set "use_sliding_window": true and layer_types in config.json',
                )
            )  # fmt: skip
    if not declared.slides and declared.window is not None and not given.speculators:
        found.append(
            AuditFinding(
                severity="info", code="window-unused",
                text=f"sliding_window {declared.window} stands in the config, but no layer is to slide",
                evidence=_config_evidence(given, "no sliding layer"),
            )
        )  # fmt: skip
    if declared.config is not None and _is_mla_draft(declared):
        found.append(
            AuditFinding(
                severity="warning", code="mla-drafter",
                text="this is an MLA drafter (attention_mode mla): no release up to 0.5.23 reads attention_mode, its "
                "DFLASH models build ordinary attention",
                evidence=_config_evidence(given, "attention_mode mla"),
            )
        )  # fmt: skip
    notes = [note for note in (*declared.notes, *given.view.notes) if not note.startswith("Speculators")]
    found += [AuditFinding(severity="info", code="config-note", text=note) for note in dict.fromkeys(notes)]
    return found


def _is_mla_draft(declared: Declared) -> bool:
    for part in (declared.raw, declared.raw.get("dflash_config"), declared.raw.get("text_config")):
        if isinstance(part, dict) and str(part.get("attention_mode", "")).lower() == "mla":
            return True
    return False


def _start(given: FindingInputs) -> list[AuditFinding]:
    fails = given.built.fails
    if not fails:
        return []
    proof = (given.built.fails_evidence,) if given.built.fails_evidence is not None else ()
    if given.inputs.server_info is not None:
        return [
            AuditFinding(
                severity="warning", code="runs-though-start-fails",
                text=f"the server runs, though with this config.json its start would fail ({fails}): the file was "
                "changed since, or something unknown changes SGLang",
                evidence=proof,
            )
        ]  # fmt: skip
    return [
        AuditFinding(severity="gap", code="start-fails", text=f"the start will fail: {fails}", evidence=proof)
    ]


def _layers(given: FindingInputs) -> list[AuditFinding]:
    """Window and causality as two faults of their own."""
    found = []
    faults, rows = given.faults, {row.index: row for row in given.rows}

    def proof(indices: Sequence[int]) -> tuple[Evidence, ...]:
        return tuple(rows[indices[0]].evidence) if indices else ()

    if faults.ignored:
        windows = sorted({rows[i].declared for i in faults.ignored} - {None}, key=str)
        asked = f"window {windows[0]}" if len(windows) == 1 else "their windows"
        found.append(
            AuditFinding(
                severity="gap", code="window-not-applied",
                text=f"{numbers(faults.ignored)}: {asked} declared, the whole context attended",
                evidence=proof(faults.ignored),
            )
        )  # fmt: skip
    if faults.differs:
        pairs = ", ".join(f"{rows[i].attended} instead of {rows[i].declared}" for i in faults.differs[:1])
        found.append(
            AuditFinding(
                severity="gap", code="window-differs", text=f"{numbers(faults.differs)}: a window of {pairs}",
                evidence=proof(faults.differs),
            )
        )  # fmt: skip
    if faults.clamped:
        by_flag = given.flag is not None
        severe = not (by_flag and (given.honours or not given.declared.slides))
        found.append(
            AuditFinding(
                severity="gap" if severe else "warning", code="full-layers-clamped",
                text=f"{numbers(faults.clamped)}: the whole context declared, only {rows[faults.clamped[0]].attended} "
                f"tokens visible{' (the window flag)' if by_flag else ''}",
                evidence=proof(faults.clamped),
            )
        )  # fmt: skip
    if faults.causality:
        wanted = rows[faults.causality[0]].causal_declared
        words = ("causal declared, bidirectional", "bidirectional declared, causal")[0 if wanted else 1]
        found.append(
            AuditFinding(
                severity="gap", code="causality-differs",
                text=f"{numbers(faults.causality)}: {words} inside the draft block",
                evidence=proof(faults.causality),
            )
        )  # fmt: skip
    if faults.ignored or faults.differs or faults.causality or (faults.clamped and not given.honours):
        lost = costs.acceptance(faults)
        if lost:
            found.append(AuditFinding(severity="info", code="cost-acceptance", text=lost))
        more = costs.reads(given.rows)
        if more:
            found.append(AuditFinding(severity="info", code="cost-reads", text=more))
    if given.verdict is Verdict.ENFORCED:
        found.append(
            AuditFinding(
                severity="ok", code="windows-applied",
                text="every declared window is applied, with the declared causality",
                evidence=tuple(given.rows[0].evidence) if given.rows else (),
            )
        )  # fmt: skip
    return found


def _flag(given: FindingInputs) -> list[AuditFinding]:
    found = []
    known = given.version.known
    option = f"--{known.window_option}" if known is not None else "the draft window flag"
    if given.arguments.window_text:
        found.append(
            AuditFinding(
                severity="warning", code="flag-unreadable",
                text=f"the draft window flag has the value '{given.arguments.window_text}', which is no number",
                evidence=given.arguments.evidence,
            )
        )  # fmt: skip
    if given.flag_asked is not None and given.flag is None:
        found.append(
            AuditFinding(
                severity="gap", code="flag-not-used",
                text=f"{option} {given.flag_asked} is given, but the worker of this tree does not use it",
                evidence=given.arguments.evidence,
            )
        )  # fmt: skip
    if given.flag is not None and not given.honours and given.declared.slides:
        found.append(
            AuditFinding(
                severity="warning", code="flag-no-repair",
                text=f"{option} does not repair it: it limits every layer, the full ones too, and leaves the sliding "
                "layers bidirectional inside the block",
                evidence=given.arguments.evidence,
            )
        )  # fmt: skip
    block = given.arguments.block_size or (
        given.declared.config.block_size if given.declared.config else None
    )
    if given.flag is not None and (given.flag < 1 or (block is not None and given.flag < block)):
        found.append(
            AuditFinding(
                severity="gap", code="flag-refused",
                text=f"a draft window of {given.flag} is refused at start: it must be at least the block"
                + (f" of {block} tokens" if block else ""),
                evidence=given.arguments.evidence,
            )
        )  # fmt: skip
    return found


def _log(given: FindingInputs) -> list[AuditFinding]:
    found = []
    log, runner = given.log, given.log.runner
    line = (Evidence(strength=Strength.LOG, where=given.inputs.log_where, text=log.runner_line),)
    if runner is not None and given.honours and runner.window is None and given.declared.slides:
        found.append(
            AuditFinding(
                severity="info", code="log-says-nothing",
                text="the log's draft_window_size=None, compact_cache=False is the flag alone: releases from 0.5.14 on "
                "print it also when the declared windows apply",
                evidence=line,
            )
        )  # fmt: skip
    asked = given.arguments
    if runner is not None and asked.window_known and runner.window != asked.window:
        said = "no draft window" if asked.window is None else f"a draft window of {asked.window}"
        logged = "none" if runner.window is None else str(runner.window)
        found.append(
            AuditFinding(
                severity="warning", code="log-contradicts-arguments",
                text=f"{asked.evidence[0].where if asked.evidence else 'the arguments'} say {said}, the log of the start "
                f"says {logged}: they are of different starts, or the flag did not arrive",
                evidence=(*asked.evidence, *line),
            )
        )  # fmt: skip
    if log.differs:
        earlier = "none" if log.earlier_window is None else str(log.earlier_window)
        found.append(
            AuditFinding(
                severity="info", code="several-starts",
                text=f"the log holds {log.starts} starts; the newest counts (an earlier one had draft window {earlier})",
                evidence=line,
            )
        )  # fmt: skip
    if given.inputs.log is not None and runner is None and given.reported is None:
        found.append(
            AuditFinding(
                severity="info", code="log-without-drafter", text="the log has no line about a DFLASH draft runner"
            )
        )  # fmt: skip
    if runner is not None and runner.attention_backend == "trtllm_mha" and given.declared.slides:
        if all(row.declared is not None and row.causal is False for row in given.rows):
            found.append(
                AuditFinding(
                    severity="warning", code="backend-wrong-window",
                    text="trtllm_mha was seen to use a wrong window for drafters whose layers all slide and are not causal",
                    evidence=line, remedy="--speculative-draft-attention-backend with another backend",
                )
            )  # fmt: skip
    return found


def _source(given: FindingInputs) -> list[AuditFinding]:
    source = given.source
    if source is None:
        return []
    proof = (Evidence(strength=Strength.SOURCE, where=source.where, text=source.identity.text),)
    found = [
        AuditFinding(
            severity="info" if source.identity.kind == "stock" else "warning",
            code={"stock": "source-stock", "hand-patched": "source-patched", "unknown": "source-unknown"}[
                source.identity.kind
            ],
            text=f"the installed SGLang is {source.identity.text}",
            evidence=proof,
        )
    ]
    if source.unknown:
        found.append(
            AuditFinding(severity="warning", code="source-not-followed", text=source.unknown, evidence=proof)
        )
    if source.may_fail:
        found.append(
            AuditFinding(
                severity="info", code="start-may-fail",
                text=f"under conditions that are not known here the start fails: {source.may_fail[0]}", evidence=proof,
            )
        )  # fmt: skip
    windows = [one.window for one in source.layers if one.window is not None]
    if windows and source.runner_known and source.runner_window != max(windows) - 1:
        told = "no window" if source.runner_window is None else f"a window of {source.runner_window + 1}"
        found.append(
            AuditFinding(
                severity="warning", code="runner-not-told",
                text=f"layers are built with a window of {max(windows)}, but the model runner is told {told}: attention "
                "backends other than fa3 and fa4 prepare their tables by the runner's",
                evidence=proof,
            )
        )  # fmt: skip
    if not windows and source.layers and source.runner_window is not None:
        found.append(
            AuditFinding(
                severity="warning", code="window-exposed-not-built",
                text=f"the model tells the runner a window of {source.runner_window + 1}, but no layer is built with one",
                evidence=proof,
            )
        )  # fmt: skip
    if given.draft_backend is not None and source.backends.get(given.draft_backend) is False:
        found.append(
            AuditFinding(
                severity="gap", code="backend-ignores-window",
                text=f"the draft attention backend {given.draft_backend} of this tree never reads a layer's window",
                evidence=proof,
            )
        )  # fmt: skip
    for path, problem in list(source.problems.items())[:5]:
        found.append(
            AuditFinding(severity="info", code="source-file", text=f"{path}: {problem}", evidence=proof)
        )
    told_version = given.version.known.name if given.version.known else None
    if told_version and source.release and source.identity.release not in (None, told_version):
        found.append(
            AuditFinding(
                severity="warning", code="version-mismatch",
                text=f"the version is said to be {told_version}, the source is {source.identity.text}", evidence=proof,
            )
        )  # fmt: skip
    return found


def _plugin(given: FindingInputs) -> list[AuditFinding]:
    if given.reported is not None and given.reported.by == "plugin":
        proof = (
            Evidence(
                strength=Strength.PLUGIN, where=given.reported.where, text=f"mode {given.reported.mode}"
            ),
        )
        note = f": {given.reported.note}" if given.reported.note else ""
        found = [
            AuditFinding(
                severity="info", code="plugin-reports",
                text=f"the plugin in the server reports its layers, mode {given.reported.mode or 'not said'}{note}",
                evidence=proof,
            )
        ]  # fmt: skip
        return found
    plugin = given.source.plugin if given.source is not None else None
    if plugin is None:
        return []
    seen = given.log.runner is not None or given.inputs.server_info is not None
    return [
        AuditFinding(
            severity="warning" if seen else "info",
            code="plugin-silent" if seen else "plugin-installed",
            text=f"the plugin {plugin} is installed, but this server reports nothing of it: it was started before, or "
            "the plugin is switched off"
            if seen
            else f"the plugin {plugin} is installed; it reports what it does in the log of a start",
        )
    ]


def _version(given: FindingInputs) -> list[AuditFinding]:
    found = []
    known = given.version.known
    if given.version.problem and given.version.text:
        found.append(AuditFinding(severity="warning", code="version-unknown", text=given.version.problem))
    if known is not None:
        found += [AuditFinding(severity="info", code="version-note", text=note) for note in known.notes]
    if given.built.strength is Strength.RELEASE:
        found.append(
            AuditFinding(
                severity="info", code="release-only",
                text="what the layers attend to is known of this release in general: the installed files were not read",
            )
        )  # fmt: skip
    return found


def _measured(given: FindingInputs) -> list[AuditFinding]:
    if not given.inputs.measured:
        return []
    verdict = given.inputs.measured_verdict or "not distinguishable"
    against = verdict in ("enforced", "ignored") and verdict != given.verdict.value
    known = given.verdict is not Verdict.UNKNOWN
    return [
        AuditFinding(
            severity="warning" if against and known else "info",
            code="measured-contradicts" if against and known else "measured",
            text=f"measured: {verdict}"
            + (f", while the rest says {given.verdict}" if against and known else ""),
            evidence=given.inputs.measured,
        )
    ]
