"""The statements of an audit, each with its evidence: config, start, faults per layer, flag and log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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

Severity = Literal["ok", "info", "warning", "gap"]


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

    def config(self, text: str) -> Evidence:
        """A statement of the drafter's config."""
        return Evidence(strength=Strength.CONFIG, where=self.inputs.draft_config_where, text=text)

    @property
    def log_line(self) -> Evidence:
        """The draft runner's line in the log."""
        return Evidence(strength=Strength.LOG, where=self.inputs.log_where, text=self.log.runner_line)


def say(severity: Severity, code: str, text: str, *evidence: Evidence, remedy: str = "") -> AuditFinding:
    """One statement."""
    return AuditFinding(severity=severity, code=code, text=text, evidence=evidence, remedy=remedy)


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


def about_config(given: FindingInputs) -> list[AuditFinding]:
    """What is wrong or odd in the config, and what transformers does to it."""
    declared = given.declared
    if declared.problem:
        return [say("warning", "config-unreadable", declared.problem)]
    found = []
    if given.speculators:
        text = "the drafter is in Speculators format: SGLang up to 0.5.23 does not read it (vLLM does)"
        remedy = "serve a drafter whose config.json has the fields of z-lab's drafters"
        proof = given.config("speculators_model_type is set")
        found.append(say("gap", "speculators-format", text, proof, remedy=remedy))
    if declared.slides:
        remedy = 'set "use_sliding_window": true and layer_types in config.json'
        for text in given.view.dropped:
            found.append(say("gap", "dropped-by-transformers", text, given.config(text), remedy=remedy))
    elif declared.window is not None and not given.speculators:
        text = f"sliding_window {declared.window} stands in the config, but no layer is to slide"
        found.append(say("info", "window-unused", text, given.config("no sliding layer")))
    if _is_mla_draft(declared):
        text = (
            "this is an MLA drafter: no release up to 0.5.23 reads attention_mode, its DFLASH "
            "models build ordinary attention"
        )
        found.append(say("warning", "mla-drafter", text, given.config("attention_mode mla")))
    notes = [note for note in (*declared.notes, *given.view.notes) if not note.startswith("Speculators")]
    return found + [say("info", "config-note", note) for note in dict.fromkeys(notes)]


def _is_mla_draft(declared: Declared) -> bool:
    for part in (declared.raw, declared.raw.get("dflash_config"), declared.raw.get("text_config")):
        if isinstance(part, dict) and str(part.get("attention_mode", "")).lower() == "mla":
            return True
    return False


def about_start(given: FindingInputs) -> list[AuditFinding]:
    """A start that fails, or a server that runs all the same."""
    fails = given.built.fails
    if not fails:
        return []
    proof = (given.built.fails_evidence,) if given.built.fails_evidence is not None else ()
    if given.inputs.server_info is None:
        return [say("gap", "start-fails", f"the start will fail: {fails}", *proof)]
    text = (
        f"the server runs, though with this config.json its start would fail ({fails}): the file "
        "was changed since, or something unknown changes SGLang"
    )
    return [say("warning", "runs-though-start-fails", text, *proof)]


def about_layers(given: FindingInputs) -> list[AuditFinding]:
    """Window and causality as two faults of their own, and what they cost."""
    found = []
    faults, rows = given.faults, {row.index: row for row in given.rows}
    if faults.ignored:
        windows = sorted({str(rows[i].declared) for i in faults.ignored if rows[i].declared is not None})
        asked = f"window {windows[0]}" if len(windows) == 1 else "a window"
        text = f"{numbers(faults.ignored)}: {asked} declared, the whole context attended"
        found.append(say("gap", "window-not-applied", text, *rows[faults.ignored[0]].evidence))
    if faults.differs:
        row = rows[faults.differs[0]]
        text = f"{numbers(faults.differs)}: a window of {row.attended} instead of {row.declared}"
        found.append(say("gap", "window-differs", text, *row.evidence))
    if faults.clamped:
        row = rows[faults.clamped[0]]
        by_flag = given.flag is not None
        chosen = by_flag and (given.honours or not given.declared.slides)
        text = f"{numbers(faults.clamped)}: the whole context declared, only {row.attended} tokens visible"
        text += " (the window flag)" if by_flag else ""
        found.append(say("warning" if chosen else "gap", "full-layers-clamped", text, *row.evidence))
    if faults.causality:
        row = rows[faults.causality[0]]
        words = "causal declared, bidirectional" if row.causal_declared else "bidirectional declared, causal"
        text = f"{numbers(faults.causality)}: {words} inside the draft block"
        found.append(say("gap", "causality-differs", text, *row.evidence))
    if faults.ignored or faults.differs or faults.causality or (faults.clamped and not given.honours):
        for code, text in (
            ("cost-acceptance", costs.acceptance(faults)),
            ("cost-reads", costs.reads(given.rows)),
        ):
            if text:
                found.append(say("info", code, text))
    if given.verdict is Verdict.ENFORCED:
        text = "every declared window is applied, with the declared causality"
        found.append(say("ok", "windows-applied", text, *given.rows[0].evidence))
    return found


def about_flag(given: FindingInputs) -> list[AuditFinding]:
    """What the window flag does here, and does not."""
    found = []
    known, proof = given.version.known, given.arguments.evidence
    option = f"--{known.window_option}" if known is not None else "the draft window flag"
    if given.arguments.window_text:
        text = f"the draft window flag has the value '{given.arguments.window_text}', which is no number"
        found.append(say("warning", "flag-unreadable", text, *proof))
    if given.flag_asked is not None and given.flag is None:
        text = f"{option} {given.flag_asked} is given, but the worker of this tree does not use it"
        found.append(say("gap", "flag-not-used", text, *proof))
    if given.flag is not None and not given.honours and given.declared.slides:
        text = (
            f"{option} does not repair it: it limits every layer, the full ones too, and leaves the "
            "sliding layers bidirectional inside the block"
        )
        found.append(say("warning", "flag-no-repair", text, *proof))
    config = given.declared.config
    block = given.arguments.block_size or (config.block_size if config else None)
    if given.flag is not None and (given.flag < 1 or (block is not None and given.flag < block)):
        text = f"a draft window of {given.flag} is refused at start: it must be at least the block"
        found.append(say("gap", "flag-refused", text + (f" of {block} tokens" if block else ""), *proof))
    return found


def about_log(given: FindingInputs) -> list[AuditFinding]:
    """What the start-up log adds, and what it does not prove."""
    found = []
    log, runner, asked = given.log, given.log.runner, given.arguments
    if runner is None:
        if given.inputs.log is not None and given.reported is None:
            found.append(
                say("info", "log-without-drafter", "the log has no line about a DFLASH draft runner")
            )
        return found
    if given.honours and runner.window is None and given.declared.slides:
        text = (
            "the log's draft_window_size=None, compact_cache=False is the flag alone: releases from "
            "0.5.14 on print it also when the declared windows apply"
        )
        found.append(say("info", "log-says-nothing", text, given.log_line))
    if asked.window_known and runner.window != asked.window:
        where = asked.evidence[0].where if asked.evidence else "the arguments"
        said = "no draft window" if asked.window is None else f"a draft window of {asked.window}"
        logged = "none" if runner.window is None else str(runner.window)
        text = (
            f"{where} say {said}, the log of the start says {logged}: they are of different starts, "
            "or the flag did not arrive"
        )
        found.append(say("warning", "log-contradicts-arguments", text, *asked.evidence, given.log_line))
    if log.differs:
        earlier = "none" if log.earlier_window is None else str(log.earlier_window)
        text = (
            f"the log holds {log.starts} starts; the newest counts (an earlier one had draft window "
            f"{earlier})"
        )
        found.append(say("info", "several-starts", text, given.log_line))
    bidirectional = given.rows and all(r.declared is not None and r.causal is False for r in given.rows)
    if runner.attention_backend == "trtllm_mha" and bidirectional:
        text = (
            "trtllm_mha was seen to use a wrong window for drafters whose layers all slide and are not causal"
        )
        remedy = "--speculative-draft-attention-backend with another backend"
        found.append(say("warning", "backend-wrong-window", text, given.log_line, remedy=remedy))
    return found
