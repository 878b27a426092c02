"""Reads one captured file offline: says what it is and what it tells, typed, without secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dflash_backend.core.errors import UsageError
from dflash_backend.core.text import LineDecoder, redact, redact_mapping, sanitise
from dflash_backend.sglang.decode import FormatError, mapping_or_empty
from dflash_backend.sglang.inspect_kind import detect_kind
from dflash_backend.sglang.inspect_log import LogSummary
from dflash_backend.sglang.inspect_readers import READERS, Found, plain
from dflash_backend.sglang.log import DecodeLine

KINDS: tuple[str, ...] = ("log", *READERS)
"""What ``inspect_file`` can be told that a file is."""
MAX_WHOLE = 64 * 1024 * 1024
"""Bytes read of a file that must be read as a whole; a log may be larger."""
MAX_LOG = 512 * 1024 * 1024
"""Bytes read of a log: the last ones."""
_HEAD = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectReport:
    """What one file told. ``summary`` and ``rows`` hold plain JSON values only, and no secret."""

    path: str
    kind: str
    size: int
    summary: Mapping[str, object] = field(default_factory=dict)
    rows: tuple[Mapping[str, object], ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The report as one JSON document."""
        return {
            "schema": 1,
            "path": self.path,
            "kind": self.kind,
            "size": self.size,
            "summary": dict(self.summary),
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
        }


def inspect_file(path: str | os.PathLike[str], kind: str | None = None) -> InspectReport:
    """Reads a file; ``kind`` (one of ``KINDS``) says what it must be, else that is found out.

    Raises UsageError for an unknown kind, a missing, unreadable or binary file, a folder, and a file that is
    too large; FormatError when it is not of the kind that was asked for.
    """
    shown = sanitise(os.fspath(path), multiline=False, limit=500)
    if kind is not None and kind not in KINDS:
        raise UsageError(f"no such kind: {kind!r}", next_step=f"one of: {', '.join(sorted(KINDS))}")
    file = Path(path)
    size, head = _open(file, shown)
    if not size:
        if kind is not None:
            raise FormatError("the file is empty", where=shown, next_step="check that the capture is whole")
        return InspectReport(
            path=shown,
            kind="empty",
            size=0,
            notes=("the file is empty: an answer without a body, or a capture that failed",),
        )
    chosen = kind or detect_kind(head, whole=size <= len(head), name=file.name)
    found = _read(file, shown, chosen, size, head)
    if kind is not None and not found.summary and not found.rows:
        looks = detect_kind(head, whole=size <= len(head), name=file.name)
        raise FormatError(
            f"nothing of the kind {kind} in this file",
            where=shown,
            next_step=f"without --kind it is read as: {looks}",
        )
    # The readers leave secrets out; this catches one that stands where none was expected.
    summary = redact_mapping(plain(found.summary))
    rows = [redact_mapping(plain(row)) for row in found.rows]
    return InspectReport(
        path=shown,
        kind=chosen,
        size=size,
        summary=summary if isinstance(summary, dict) else {"value": summary},
        rows=tuple(row if isinstance(row, dict) else {"value": row} for row in rows),
        notes=tuple(dict.fromkeys(redact(note) for note in found.notes)),
    )


def _read(file: Path, shown: str, kind: str, size: int, head: bytes) -> Found:
    """Runs the kind's reader; every error names the file."""
    try:
        if kind == "log":
            return _log(file, size)
        if size > MAX_WHOLE:
            raise UsageError(
                f"the file has {size // 2**20} MiB, too much for a {kind} file",
                next_step="cut it down, or give --kind log if it is a log",
            )
        return READERS[kind](head if size <= len(head) else file.read_bytes())
    except UsageError as error:
        error.where = error.where or shown
        raise
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}",
            where=shown,
            next_step="check the path and its permissions",
        ) from None


def _open(file: Path, shown: str) -> tuple[int, bytes]:
    """Size and first bytes of a regular, readable text file."""
    try:
        info = file.stat()
        if not stat.S_ISREG(info.st_mode):
            what = "a folder" if stat.S_ISDIR(info.st_mode) else "no regular file"
            raise UsageError(f"this is {what}", where=shown, next_step="give a single file")
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
    except FileNotFoundError:
        raise UsageError("no such file", where=shown, next_step="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot be read: {sanitise(reason, multiline=False, limit=200)}",
            where=shown,
            next_step="check the path and its permissions",
        ) from None
    if head.count(0) > len(head) // 1000:
        raise UsageError(
            "this is a binary file",
            where=shown,
            next_step="give a log, a /metrics page, a JSON answer, nvidia-smi output or a config.json",
        )
    return info.st_size, head


def _log(file: Path, size: int) -> Found:
    summary = LogSummary()
    decoder = LineDecoder()
    with file.open("rb") as stream:
        skipped = max(0, size - MAX_LOG)
        stream.seek(skipped)
        while chunk := stream.read(1024 * 1024):
            for line in decoder.feed(chunk):
                summary.feed(line)
    for line in decoder.close():
        summary.feed(line)
    notes = summary.notes()
    if skipped:
        notes = (f"the first {skipped // 2**20} MiB of the log were not read", *notes)
    rows = [
        {"batch": "decode" if isinstance(row, DecodeLine) else "prefill", **mapping_or_empty(plain(row))}
        for row in summary.rows
    ]
    return Found(summary.summary(), rows, notes)
