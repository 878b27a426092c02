"""The audit: config, arguments, log and source put together into one verdict per server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_backend.audit import costs
from dflash_backend.audit.arguments import PLUGIN_KEY, Arguments, read_arguments
from dflash_backend.audit.declared import UNSAID, Declared, read_declared
from dflash_backend.audit.findings import FindingInputs
from dflash_backend.audit.inputs import AuditInputs
from dflash_backend.audit.knowledge import Built, VersionFacts, built_layers, find_version
from dflash_backend.audit.remedies import remedies_for
from dflash_backend.audit.report import AuditReport, Evidence, Strength, Verdict
from dflash_backend.audit.rows import Clamp, Faults, find_faults, judge, make_rows
from dflash_backend.audit.source import SourceFacts, read_source
from dflash_backend.audit.source_findings import collect_findings
from dflash_backend.audit.startup_log import LogFacts, Reported, read_log, read_report
from dflash_backend.audit.transformers_view import TransformersView, transformers_view
from dflash_backend.audit.tree_mask import tree_findings
from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.decode import as_mapping, decode_json
from dflash_backend.sglang.server_info import WINDOW_KEYS

__all__ = ["AuditInputs", "audit"]


def audit(inputs: AuditInputs) -> AuditReport:
    """The report for what was given. Never raises for bad input: what cannot be read makes it ``unknown``."""
    return _Audit(inputs).report()


class _Audit:
    def __init__(self, inputs: AuditInputs) -> None:
        self.inputs = inputs
        self.declared = self._declared()
        self.view: TransformersView = transformers_view(self.declared.raw)
        self.log: LogFacts = read_log(inputs.log, inputs.log_where) if inputs.log is not None else LogFacts()
        self.arguments: Arguments = read_arguments(inputs)
        runner = self.log.runner
        self.draft_backend = self.arguments.draft_backend or (runner.attention_backend if runner else None)
        self.source = self._source()
        if self.source is not None and self.source.flag.field not in (None, *WINDOW_KEYS):
            self.arguments = read_arguments(inputs, self.source.flag.field)
        self.version: VersionFacts = find_version(self._version_text())
        self.reported = self._reported()
        self.target = self._target()

    # What was given ------------------------------------------------------------------------------------

    def _declared(self) -> Declared:
        if self.inputs.draft_config is None:
            return Declared(
                problem=self.inputs.draft_config_missing or "the drafter's config.json was not given"
            )
        return read_declared(self.inputs.draft_config, self.inputs.draft_config_where)

    def _source(self) -> SourceFacts | None:
        if self.inputs.source is None:
            return None
        count = len(self.declared.layers) or None
        return read_source(self.inputs.source, self.view, count, self.draft_backend)

    def _version_text(self) -> str | None:
        told = self.inputs.sglang_version
        if told is None and self.inputs.server_info is not None:
            value = self.inputs.server_info.get("version")
            told = value if isinstance(value, str) else None
        if told is None and self.source is not None:
            told = self.source.release
        return sanitise(told, multiline=False, limit=80) if told else None

    def _reported(self) -> Reported | None:
        if self.arguments.plugin is not None:
            found = read_report(self.arguments.plugin, f"/server_info {PLUGIN_KEY}")
            if found is not None:
                return found
        return self.log.reported

    def _target(self) -> Mapping[str, Any] | None:
        if self.inputs.target_config is None:
            return None
        try:
            return as_mapping(decode_json(self.inputs.target_config, "the target's config.json"), "it")
        except (ConsoleError, RecursionError):
            return None

    # The window flag -----------------------------------------------------------------------------------

    def _flag(self) -> tuple[int | None, bool, tuple[Evidence, ...]]:
        """(value, known, evidence) of the window flag in force.

        A live server's own settings come first, then the log of its start, then a command line.
        """
        arguments, runner = self.arguments, self.log.runner
        told = runner is not None and (runner.window is not None or runner.compact_cache is not None)
        if told and runner is not None and not arguments.from_server:
            evidence = Evidence(strength=Strength.LOG, where=self.inputs.log_where, text=self.log.runner_line)
            return runner.window, True, (evidence,)
        return arguments.window, arguments.window_known, arguments.evidence

    # The report ----------------------------------------------------------------------------------------

    def report(self) -> AuditReport:
        flag, flag_known, flag_evidence = self._flag()
        consumed = self.source.flag.consumed if self.source is not None else True
        clamp = (
            Clamp(window=flag, evidence=flag_evidence) if flag is not None and consumed is not False else None
        )
        unreadable = bool(self.declared.problem) or self._speculators
        built = (
            Built()
            if unreadable
            else built_layers(
                self.declared,
                self.view,
                self.version,
                self.source,
                self.reported,
                self.inputs,
                self.draft_backend,
            )
        )
        honours = self._honours(built)
        config = Evidence(strength=Strength.CONFIG, where=self.inputs.draft_config_where, text="")
        rows = make_rows(self.declared, built.layers, clamp, config)
        if not honours and not flag_known and built.layers and self.declared.slides and self.reported is None:
            rows = tuple(replace(row, attended=None, attended_known=False) for row in rows)
        faults = find_faults(self.declared, rows) if built.layers else Faults()
        verdict = self._verdict(built, rows, faults, honours=honours, unreadable=unreadable)
        start_fails = bool(built.fails)
        compact = None if not flag_known else clamp is not None
        findings = collect_findings(
            FindingInputs(
                inputs=self.inputs,
                declared=self.declared,
                view=self.view,
                version=self.version,
                source=self.source,
                arguments=self.arguments,
                log=self.log,
                reported=self.reported,
                built=built,
                rows=rows,
                faults=faults,
                verdict=verdict,
                flag=flag if clamp is not None else None,
                flag_asked=flag,
                flag_known=flag_known,
                honours=honours,
                draft_backend=self.draft_backend,
                speculators=self._speculators,
            )
        )
        findings += costs.memory(self.version.known, flag, self.target, self.declared.raw)
        findings += tree_findings(
            self.arguments, self.version.known, self.target, self.inputs.compute_capability
        )
        return AuditReport(
            verdict=verdict,
            subject=sanitise(self.inputs.subject, multiline=False, limit=300),
            sglang_version=self.version.text,
            layers=rows,
            cached_window=clamp.window if clamp is not None else None,
            compact_cache=compact,
            findings=tuple(findings),
            remedies=remedies_for(
                verdict,
                self.declared,
                faults,
                self.version.known,
                host=self.inputs.host,
                patched=self.source is not None and self.source.identity.kind == "hand-patched",
                start_fails=start_fails and not self._speculators,
                trap=bool(self.view.dropped) and self.declared.slides,
                flag=clamp.window if clamp is not None else None,
                honours=honours,
            ),
            missing=self._missing(built, verdict, flag_known, honours),
            at=self.inputs.at,
        )

    @property
    def _speculators(self) -> bool:
        config = self.declared.config
        return config is not None and config.form == "speculators" and self.reported is None

    def _honours(self, built: Built) -> bool:
        """Whether declared windows are built at all, so that the flag is only a limit on top."""
        if any(layer.window is not None for layer in built.layers):
            return True
        return self.version.known is not None and self.version.known.honours_layer_windows

    def _verdict(
        self, built: Built, rows: Any, faults: Faults, *, honours: bool, unreadable: bool
    ) -> Verdict:
        declared = self.declared
        if unreadable or declared.missing or not declared.layers:
            return Verdict.UNKNOWN
        if built.fails:
            if self.inputs.server_info is not None:
                return Verdict.UNKNOWN  # it runs, so this is not what it runs with
            if self.view.dropped and declared.slides:
                return Verdict.DECLARED_BUT_DROPPED
            return Verdict.UNKNOWN
        if not built.layers:
            return Verdict.UNKNOWN if declared.slides or self.version.known is None else Verdict.NOT_DECLARED
        # A config that names no kinds loses its window in every release; one that does, where kinds are read.
        unsaid = any(layer.kind == UNSAID for layer in declared.layers)
        single = declared.window == 1
        dropped = unsaid or ((bool(self.view.dropped) or single) and honours)
        return judge(declared, rows, faults, dropped=dropped, by_flag=bool(self._flag()[0]), honours=honours)

    def _missing(self, built: Built, verdict: Verdict, flag_known: bool, honours: bool) -> tuple[str, ...]:
        missing = [self.declared.problem, self.declared.missing, *built.missing]
        if self._speculators:
            missing.append("a config.json in a form that SGLang reads")
        if any(not layer.known for layer in self.declared.layers):
            missing.append("the window of the sliding layers: config.json does not say it as a usable number")
        if self.version.problem and self.source is None and self.reported is None:
            missing.append(self.version.problem)
        if not flag_known and not honours and self.declared.slides and self.reported is None:
            missing.append("whether the draft window flag is given (arguments or log)")
        if built.fails and self.inputs.server_info is not None:
            missing.append(
                "the config.json that the server was started with: with this one it would not start"
            )
        if verdict is Verdict.UNKNOWN and not any(missing):
            missing.append("what each layer was built with")
        return tuple(dict.fromkeys(text for text in missing if text))
