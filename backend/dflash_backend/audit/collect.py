"""Brings from a host what the audit reads, in one round over SSH; nothing there is changed or run."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from dflash_backend.audit.inputs import SOURCE_PATTERNS, MemoryTree
from dflash_backend.core.errors import FailedError
from dflash_backend.core.text import redact_argv, sanitise
from dflash_backend.ssh.link import HostLink

TIMEOUT_S = 60.0
MAX_UNPACKED = 40 * 1024 * 1024
_ENV = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "PYTHONPATH", "SGLANG_PLUGINS", "HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose files are read. Everything may be missing; the process or ``argv`` stand in for the models.

    ``pid``: the server's process (else whoever listens on ``port``): it tells interpreter, working folder and
    caches. ``python``: interpreter or venv folder when neither it nor ``argv`` do. ``env``: what profile and
    host add to the environment.
    """

    pid: int | None = None
    port: int | None = None
    argv: Sequence[str] = ()
    python: str | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    drafter: str | None = None
    target: str | None = None
    log: str | None = None
    sources: bool = True
    """False: SGLang's sources are not wanted."""


class Installation(msgspec.Struct, frozen=True):
    """One copy of SGLang that the server's interpreter could import; the first one counts."""

    where: str
    version: str | None = None
    kind: str = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was read. A part that is None has its reason in the matching ``*_missing``."""

    argv: tuple[str, ...] = ()
    started_at: float | None = None
    python: str = ""
    guessed: bool = False
    """No process or command line told the interpreter: it is the one that the host is configured with."""
    installations: tuple[Installation, ...] = ()
    source: MemoryTree | None = None
    source_missing: str = ""
    source_changed_at: float | None = None
    """When the newest of the files was last changed, on the host's clock."""
    unread: tuple[str, ...] = ()
    drafter: bytes | None = None
    drafter_where: str = ""
    drafter_missing: str = ""
    drafter_note: str = ""
    target: bytes | None = None
    log: tuple[str, ...] | None = None
    log_where: str = ""
    log_missing: str = ""
    compute_capability: tuple[int, int] | None = None
    env: Mapping[str, str] | None = None
    problems: tuple[str, ...] = ()

    @property
    def sglang_version(self) -> str | None:
        """The version of the copy that is imported."""
        return self.installations[0].version if self.installations else None


class _File(msgspec.Struct):
    data: str | None = None
    where: str = ""
    problem: str = ""
    note: str = ""


class _Source(msgspec.Struct):
    installations: list[Installation] = []
    where: str = ""
    files: str | None = None
    newest: float | None = None
    unread: list[str] = []
    problem: str = ""


class _Process(msgspec.Struct):
    argv: list[str] = []
    started_at: float | None = None


class _Python(msgspec.Struct):
    path: str = ""
    guessed: bool = False


class _Answer(msgspec.Struct):
    process: _Process
    python: _Python
    source: _Source
    env: dict[str, str] = {}
    compute_caps: list[str] | None = None
    drafter: _File | None = None
    target: _File | None = None
    log: _File | None = None
    problems: list[str] = []


async def collect(link: HostLink, wanted: Wanted) -> Collected:
    """Reads what ``wanted`` names. What cannot be read is a reason in the result, never an error.

    Raises UnreachableError, RefusedError (host key, login), ConfigError (no Python there) as the connection
    does, and FailedError for an answer that is not understood.
    """
    request = {
        "pid": wanted.pid,
        "port": wanted.port,
        "argv": list(wanted.argv) or None,
        "python": wanted.python,
        "env": {k: v for k, v in (wanted.env or {}).items() if k in _ENV},
        "cwd": wanted.cwd,
        "drafter": wanted.drafter,
        "target": wanted.target,
        "log": wanted.log,
        "patterns": list(SOURCE_PATTERNS) if wanted.sources else [],
    }
    answer_json = await link.run_program("audit_files", request, timeout=TIMEOUT_S)
    try:
        answer = msgspec.convert(answer_json, _Answer)
        return _collected(answer)
    except (msgspec.ValidationError, ValueError, zlib.error) as error:
        raise FailedError(
            f"the host's answer is not understood: {error}", where=f"host {link.config.name}"
        ) from error


def _collected(answer: _Answer) -> Collected:
    source, drafter, log = answer.source, answer.drafter, answer.log
    tree = None
    if source.files is not None:
        files = json.loads(_unpacked(source.files))
        tree = MemoryTree(source.where, {name: _decoded(data) for name, data in files.items()})
    return Collected(
        argv=tuple(redact_argv(answer.process.argv)),
        started_at=answer.process.started_at,
        python=answer.python.path,
        guessed=answer.python.guessed,
        installations=tuple(source.installations),
        source=tree,
        source_missing=source.problem,
        source_changed_at=source.newest,
        unread=tuple(source.unread),
        drafter=_decoded(drafter.data) if drafter is not None and drafter.data is not None else None,
        drafter_where=drafter.where if drafter is not None else "",
        drafter_missing=drafter.problem if drafter is not None else "no drafter is named",
        drafter_note=drafter.note if drafter is not None else "",
        target=_decoded(answer.target.data) if answer.target is not None and answer.target.data else None,
        log=_lines(log.data) if log is not None and log.data is not None else None,
        log_where=log.where if log is not None else "",
        log_missing=log.problem if log is not None else "",
        compute_capability=_capability(answer.compute_caps),
        env=answer.env,
        problems=tuple(answer.problems),
    )


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _unpacked(data: str) -> bytes:
    unpacker = zlib.decompressobj()
    out = unpacker.decompress(_decoded(data), MAX_UNPACKED)
    if unpacker.unconsumed_tail:
        raise ValueError(f"more than {MAX_UNPACKED} bytes of files")
    return out


def _lines(data: str) -> tuple[str, ...]:
    return tuple(sanitise(_unpacked(data)).split("\n"))


def _capability(caps: Sequence[str] | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", caps[0]) if caps else None
    return (int(match[1]), int(match[2])) if match else None
