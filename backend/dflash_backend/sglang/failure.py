"""Why a start failed, in plain words, from the lines of its log.

A failing start often prints many tracebacks, one per rank, and the reason is in one of the first; healthy
logs hold tracebacks too (optional modules that are not there), which are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_backend.core.text import redact, sanitise
from dflash_backend.sglang.failure_rules import RULES
from dflash_backend.sglang.log import split_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason of a failed start. ``lines`` are those of the log that say so, secrets removed."""

    kind: str
    text: str
    next_step: str
    lines: tuple[str, ...] = ()


_BENIGN = re.compile(
    r"Ignore import error when loading|Can not initialize OpenAIServing|Failed to load generation config|"
    r"UserWarning|DeprecationWarning|FutureWarning|Skipping import|is not installed, (?:skip|falling)|"
    r"Failed to import .*(?:fallback|ignored|skip)|Fail to set RLIMIT|leaked semaphore"
)
_TRACE_HEAD = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure)|[A-Za-z_]\w*\.[\w.]+)(?:: .*)?$"
)
_TOLD_TO_STOP = re.compile(
    r"SIGTERM received|Gracefully exiting|Shutting down|Received sigquit|KeyboardInterrupt"
)
MAX_LINES = 4000
MAX_EVIDENCE = 8


def explain_failure(lines: Iterable[str], *, exit_code: int | None = None) -> Failure | None:
    """The reason of a failed start, from the lines of its log (the last ones are enough) and the exit code.

    None when nothing in the lines says why and the exit code says nothing either. Call it only for a server
    that has failed: a healthy log may hold warnings that look alike.
    """
    clean = [redact(sanitise(line, multiline=False, limit=2000)) for line in list(lines)[-MAX_LINES:]]
    bodies = [split_line(line).text for line in clean]
    skipped = _benign(bodies)
    best: tuple[int, int, re.Match[str]] | None = None
    for at, body in enumerate(bodies):
        if at in skipped or not body:
            continue
        for rank, rule in enumerate(RULES):
            found = rule.pattern.search(body)
            if found is not None:
                # The earlier rule is the more telling one; of equals the first line is nearest to the cause.
                if best is None or rank < best[0]:
                    best = (rank, at, found)
                break
    if best is not None:
        rank, at, found = best
        rule = RULES[rank]
        return Failure(
            kind=rule.kind,
            text=rule.text(found),
            next_step=rule.next_step,
            lines=_evidence(clean, bodies, at),
        )
    return _from_exit(exit_code, bodies, clean) or _last_exception(bodies, clean, skipped)


def _benign(bodies: Sequence[str]) -> set[int]:
    """Numbers of the lines of warnings and of tracebacks that a healthy start prints as well."""
    skipped: set[int] = set()
    inside = False
    for at, body in enumerate(bodies):
        if _BENIGN.search(body):
            skipped.add(at)
            inside = _TRACE_HEAD in body
        elif inside:
            skipped.add(at)
            # The traceback ends with its exception, the first line that is not indented.
            inside = not body or body != body.lstrip() or not _EXCEPTION.match(body)
    return skipped


def _evidence(clean: Sequence[str], bodies: Sequence[str], at: int) -> tuple[str, ...]:
    """The telling line, with the usage error's or traceback's last frames in front of it."""
    first = at
    while first > 0 and at - first < MAX_EVIDENCE - 2 and bodies[first - 1].startswith("  "):
        first -= 1
    return tuple(line[:400] for line in clean[first : at + 2] if line.strip())


_SIGNALS = {9: "KILL", 6: "ABRT", 11: "SEGV", 7: "BUS", 4: "ILL", 15: "TERM", 2: "INT", 1: "HUP"}


def _from_exit(exit_code: int | None, bodies: Sequence[str], clean: Sequence[str]) -> Failure | None:
    if exit_code is None:
        return None
    # A shell says 128 + signal, a parent process may see a negative number.
    signal = -exit_code if exit_code < 0 else exit_code - 128
    tail = tuple(line[:400] for line in clean[-MAX_EVIDENCE:] if line.strip())
    if signal == 9:
        stopped = any(_TOLD_TO_STOP.search(body) for body in bodies[-50:])
        if stopped:
            # SGLang's launcher ends itself with KILL after an orderly stop.
            return Failure(
                kind="stopped",
                text="the server was told to stop and did (SGLang's launcher then kills itself: 137)",
                next_step="start it again if that was not meant",
                lines=tail,
            )
        return Failure(
            kind="killed",
            text="the process was killed (137): by the kernel when the host's memory ran out, or by somebody",
            next_step="look for 'Out of memory' in dmesg on the host, and at its free memory",
            lines=tail,
        )
    if exit_code == 127 or exit_code == 126:
        return Failure(
            kind="no-interpreter",
            text="the program to start is not there or may not be run",
            next_step="correct 'python' of the host in the configuration",
            lines=tail,
        )
    if signal in _SIGNALS and signal not in (15, 2, 1):
        return Failure(
            kind="crashed",
            text=f"the process crashed with signal {_SIGNALS[signal]}",
            next_step="look at the last lines and at dmesg on the host; try another attention backend",
            lines=tail,
        )
    return None


def _last_exception(bodies: Sequence[str], clean: Sequence[str], skipped: set[int]) -> Failure | None:
    for at in range(len(bodies) - 1, -1, -1):
        if at not in skipped and _EXCEPTION.match(bodies[at]) and "Error" in bodies[at]:
            return Failure(
                kind="exception",
                text=f"SGLang stopped with {bodies[at][:300]}",
                next_step="read the lines before it in the log",
                lines=_evidence(clean, bodies, at),
            )
    return None
