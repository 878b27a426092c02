"""Recordings: one JSON line per snapshot after a header, so that a session can be watched again.

What is long and seldom changes (settings, GPUs, the run with its log tail) is written when it changed; of a
log tail only what came is written. Lines are numbered and every ``WHOLE_EVERY``-th one is whole, so that a
damaged line costs a minute at most. Secrets are removed where text enters the console and once more here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import ConfigError, ConsoleError, FailedError, UsageError
from dflash_backend.core.samples import Snapshot
from dflash_backend.core.text import redact_mapping
from dflash_backend.telemetry.contract import FleetView
from dflash_backend.telemetry.snapshot_json import SCHEMA, iso, snapshot_from_json, snapshot_to_json

KIND = "dflash-console-recording"
MAX_LINE = 32 * 1024 * 1024
MAX_PROBLEMS = 20
WHOLE_EVERY = 60
SAME = "="
"""Stands for a part that is as in the line before."""
_HEAVY = ("settings", "run", "gpus")


def _added(old: str, new: str) -> str | None:
    """What was appended to ``old`` so that its end is ``new``; None when that is not how they differ."""
    anchor = old[-256:]
    place = new.rfind(anchor) if anchor else -1
    if place < 0:
        return None
    more = new[place + len(anchor) :]
    return more if (old + more)[-len(new) :] == new else None


class Packer:
    """Snapshots to lines. Keeps what the reader will have read so far."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Any]] = {}
        self._number = 0

    def pack(self, snapshot: Snapshot) -> dict[str, Any]:
        """The JSON of a snapshot without what the lines before told already."""
        line = snapshot_to_json(snapshot, detail=True)
        line["n"] = self._number
        if self._number % WHOLE_EVERY == 0:
            self._last.clear()
        self._number += 1
        for server in line["servers"]:
            detail = server["detail"]
            before = self._last.get(server["name"], {})
            self._last[server["name"]] = {key: detail[key] for key in _HEAVY}
            for key in _HEAVY:
                if key in before and before[key] == detail[key]:
                    detail[key] = SAME
            run, old = detail["run"], before.get("run")
            if isinstance(run, dict) and isinstance(old, dict) and old["run_id"] == run["run_id"]:
                detail["run"] = _run_delta(old, run)
        # Once more, although everything was cleaned when it was read: a file outlives a screen.
        clean = redact_mapping(line)
        assert isinstance(clean, dict)
        return clean


def _run_delta(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    delta = {key: value for key, value in new.items() if old.get(key) != value}
    tail = delta.pop("log_tail", None)
    if tail is not None:
        added = _added(old["log_tail"], tail)
        delta["log_tail"] = tail if added is None else {"add": added, "length": len(tail)}
    return {SAME: delta}


class Unpacker:
    """Lines to snapshots."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Any]] = {}
        self._number = -1

    def unpack(self, line: object) -> Snapshot:
        """Raises ConfigError for a line that is no snapshot or needs one that is not there."""
        if isinstance(line, dict) and isinstance(line.get("servers"), list):
            if line.get("n") != self._number + 1:
                self._last.clear()
            self._number = line["n"] if isinstance(line.get("n"), int) else -1
            for server in line["servers"]:
                if isinstance(server, dict) and isinstance(server.get("detail"), dict):
                    self._complete(str(server.get("name")), server["detail"])
        return snapshot_from_json(line)

    def _complete(self, name: str, detail: dict[str, Any]) -> None:
        before = self._last.get(name, {})
        for key in _HEAVY:
            value = detail.get(key)
            if value == SAME or (key == "run" and isinstance(value, dict) and SAME in value):
                if key not in before:
                    raise ConfigError("not a snapshot: it continues a line that is missing")
                detail[key] = before[key] if value == SAME else _run_from(before[key], value[SAME])
        self._last[name] = {key: detail.get(key) for key in _HEAVY}


def _run_from(old: object, delta: object) -> dict[str, Any]:
    if not isinstance(old, dict) or not isinstance(delta, dict):
        raise ConfigError("not a snapshot: its run continues none")
    run = {**old, **delta}
    tail = delta.get("log_tail")
    if isinstance(tail, dict):
        length = tail.get("length")
        whole = str(old.get("log_tail")) + str(tail.get("add"))
        run["log_tail"] = whole[-length:] if isinstance(length, int) and length > 0 else ""
    return run


async def record(
    fleet: FleetView,
    path: Path,
    *,
    seconds: float | None = None,
    interval_s: float = 1.0,
    overwrite: bool = False,
    clock: Clock = wall,
) -> int:
    """Writes snapshots until ``seconds`` are over, the fleet closes or the caller is cancelled.

    Returns the number of snapshots. The file is 0600 and whole lines at any moment. Raises UsageError when it
    exists (unless ``overwrite``), FailedError when it cannot be written; what was written stays.
    """
    packer = Packer()
    written = 0
    with _create(path, overwrite) as stream:
        _write(stream, path, {"schema": SCHEMA, "kind": KIND, "started": iso(clock())})
        last: float | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(_stream(fleet)) as snapshots:
                async for snapshot in snapshots:
                    # A little less than the interval, so that a snapshot each second is one line each second.
                    if last is not None and 0 <= snapshot.at - last < 0.9 * interval_s:
                        continue
                    last = snapshot.at
                    _write(stream, path, packer.pack(snapshot))
                    written += 1
    return written


async def _stream(fleet: FleetView) -> Any:
    changes = fleet.changes()
    try:
        async for snapshot in changes:
            yield snapshot
    finally:
        close = getattr(changes, "aclose", None)
        if close is not None:
            await close()


def _create(path: Path, overwrite: bool) -> FileIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
    except FileExistsError:
        raise UsageError(
            "the file exists already",
            where=str(path),
            unchanged="it was not touched",
            next_step="name another",
        ) from None
    except OSError as error:
        raise FailedError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _write(stream: FileIO, path: Path, line: object) -> None:
    try:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        # Unbuffered: after a full disk nothing is left that closing would try to write.
        while data:
            data = data[stream.write(data) :]
    except OSError as error:
        raise FailedError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            unchanged="what was recorded so far is kept",
        ) from error


@dataclass(slots=True)
class Recording:
    """A recording that is read line by line; memory is bounded by one line.

    ``problems`` are lines that were left out, at most ``MAX_PROBLEMS`` of them in words.
    """

    path: Path
    problems: list[str] = field(default_factory=list)
    skipped: int = 0

    def snapshots(self) -> Iterator[Snapshot]:
        """All snapshots in order. Raises ConfigError when the file is no recording at all."""
        try:
            with self.path.open("rb") as stream:
                yield from self._read(stream)
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", where=str(self.path)) from error

    def _read(self, stream: BinaryIO) -> Iterator[Snapshot]:
        number, found = 1, 0
        self._check_header(stream.readline(MAX_LINE))
        unpacker = Unpacker()
        while raw := stream.readline(MAX_LINE):
            number += 1
            if not raw.endswith(b"\n") and len(raw) == MAX_LINE:
                self._skip(number, f"longer than {MAX_LINE} bytes")
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(MAX_LINE)
                continue
            if not raw.strip():
                continue
            try:
                snapshot = unpacker.unpack(json.loads(raw))
            except ConsoleError as error:
                self._skip(number, error.what)
            except (ValueError, RecursionError):
                self._skip(number, "not JSON" if raw.endswith(b"\n") else "cut off")
            else:
                found += 1
                yield snapshot
        if not found:
            raise ConfigError("the recording holds no snapshot", where=str(self.path))

    def _check_header(self, raw: bytes) -> None:
        where = f"{self.path}:1"
        if not raw:
            raise ConfigError("the file is empty", where=str(self.path))
        try:
            header = json.loads(raw)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise ConfigError(
                "not a recording", where=where, next_step="make one with: dflash-console record FILE"
            )
        if header.get("schema") != SCHEMA:
            raise ConfigError(
                f"recorded with schema {header.get('schema')!r}, this console reads {SCHEMA}", where=where
            )

    def _skip(self, number: int, why: str) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{self.path}:{number}: left out: {why}")
