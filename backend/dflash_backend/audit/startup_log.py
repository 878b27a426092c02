"""What the start-up log says of the drafter: the newest start in it, and the plugin's report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_backend.core.text import sanitise
from dflash_backend.sglang.decode import flag, integer, items, mapping_or_empty
from dflash_backend.sglang.startup import DraftRunner, read_draft_runner

PLUGIN_PREFIX = "dflash-sglang: windows "
_START = re.compile(r"server_args=ServerArgs\(|\bserver_args: ?ServerArgs\(|\bstarting the server\b")
_ENGINE = re.compile(r"dflash-engine: \S{1,20} drafter layers attend: (?P<layers>.*)")
_ENGINE_LAYER = re.compile(
    r"(?P<index>\d{1,4}) (?P<kind>\S{1,40}) window=(?P<window>\d{1,12}|None) (?P<causal>non-causal|causal)"
)
_RUNNER = "Initialized DFLASH draft runner"
MAX_LINES = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLayer:
    """One layer as the plugin or the engine reports it out of the running server."""

    index: int
    declared: int | None
    declared_known: bool
    attended: int | None
    causal: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A report of live layers. ``by``: ``plugin`` or ``engine``."""

    by: str
    layers: tuple[ReportedLayer, ...]
    mode: str = ""
    cached: int | None = None
    note: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The newest start of a log. ``starts`` counts how many it holds."""

    runner: DraftRunner | None = None
    runner_line: str = ""
    reported: Reported | None = None
    starts: int = 0
    lines: int = 0
    earlier_window: int | None = None
    differs: bool = False
    """An earlier start in the log had another window flag."""


def read_log(lines: Iterable[str], where: str = "log") -> LogFacts:
    """Reads a log's lines; only the newest start counts. Never raises."""
    starts: list[list[str]] = [[]]
    count = 0
    for line in lines:
        count += 1
        if count > MAX_LINES:
            break
        own = _RUNNER in line
        if (_START.search(line) and starts[-1]) or (own and any(_RUNNER in old for old in starts[-1])):
            starts.append([])
        if own or "draft runner" in line or "dflash-" in line:
            starts[-1].append(sanitise(line, multiline=False))
    while len(starts) > 1 and not starts[-1]:
        starts.pop()
    newest = starts[-1]
    runners = [read_draft_runner(part) for part in starts]
    runner = runners[-1]
    line = next((text for text in reversed(newest) if "Initialized" in text and "draft runner" in text), "")
    earlier = next((one for one in reversed(runners[:-1]) if one is not None), None)
    return LogFacts(
        runner=runner,
        runner_line=line[-400:],
        reported=_reported(newest, where),
        starts=sum(1 for part in starts if part),
        lines=count,
        earlier_window=earlier.window if earlier is not None else None,
        differs=runner is not None and earlier is not None and earlier.window != runner.window,
    )


def _reported(lines: list[str], where: str) -> Reported | None:
    for line in reversed(lines):
        if PLUGIN_PREFIX in line:
            try:
                report = json.loads(line.split(PLUGIN_PREFIX, 1)[1])
            except (ValueError, RecursionError):
                continue
            found = read_report(mapping_or_empty(report), where)
            if found is not None:
                return found
        engine = _ENGINE.search(line)
        if engine:
            layers = tuple(
                ReportedLayer(
                    index=int(m["index"]),
                    declared=None,
                    declared_known=False,
                    attended=None if m["window"] == "None" else int(m["window"]),
                    causal=m["causal"] == "causal",
                )
                for m in _ENGINE_LAYER.finditer(engine["layers"])
            )
            if layers:
                return Reported(by="engine", layers=layers, where=where)
    return None


def read_report(report: Mapping[str, Any], where: str) -> Reported | None:
    """The plugin's report (see ``dflash_sglang.report``); None when it tells of no layers."""
    layers = []
    for item in items(report.get("layers")):
        one = mapping_or_empty(item)
        index = integer(one.get("layer"))
        if index is None:
            return None
        attended = one.get("attended")
        if attended is not None and integer(attended) is None:
            return None
        layers.append(
            ReportedLayer(
                index=index,
                declared=integer(one.get("declared")),
                declared_known="declared" in one,
                attended=integer(attended),
                causal=flag(one.get("causal")),
            )
        )
    if not layers:
        return None
    mode = report.get("mode")
    note = report.get("note")
    return Reported(
        by="plugin",
        layers=tuple(layers),
        mode=sanitise(mode, multiline=False, limit=40) if isinstance(mode, str) else "",
        cached=integer(report.get("cached")),
        note=sanitise(note, multiline=False, limit=300) if isinstance(note, str) else "",
        where=where,
    )
