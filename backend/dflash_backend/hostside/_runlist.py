"""Rows about all runs of this host, for one question as well as for a monitor that asks every second."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from dflash_backend.hostside import _members, _procs, _runfolder

TAIL = 4096
LAUNCH_TAKES_S = 30.0
"""A folder without identity is a launch in progress for so long, then one that was cut off."""
MANAGERS = ("systemd", "setsid", "adopted")
TEXTS = ("server", "profile", "profile_digest", "profile_toml", "started_by", "machine", "log_path")


class RunList:
    """Reads the run folders. Keep it between calls: what cannot change any more is not read again."""

    def __init__(self, root: str | None = None) -> None:
        self.root = root or _runfolder.root()
        self.records: dict[str, tuple[Any, dict[str, Any], str]] = {}
        self.finished: dict[str, tuple[Any, dict[str, Any]]] = {}

    def names(self) -> list[str]:
        """Names of the run folders, newest first."""
        try:
            entries = os.listdir(self.root)
        except OSError:
            return []
        return sorted((name for name in entries if not name.startswith(".")), reverse=True)

    def rows(
        self, *, table: dict[int, _procs.Process] | None = None, tails: bool = True
    ) -> list[dict[str, Any]]:
        """One row for every run, newest first. ``tails``: with the end of the log of each server's last run.

        ``table`` may be given by a caller that has just read the processes. Never raises for what is wrong
        with one folder: the row says it in ``note``.
        """
        table = _procs.processes() if table is None else table
        boot = _procs.boot_id()
        names = self.names()
        rows = [self.row(name, table, boot) for name in names]
        for gone in set(self.records) - set(names):
            del self.records[gone]
        for gone in set(self.finished) - set(names):
            del self.finished[gone]
        if tails:
            seen = set()
            for row in rows:
                if row["server"] not in seen:
                    seen.add(row["server"])
                    row["log_tail"] = tail(row["log_path"], TAIL)
        return rows

    def row(self, name: str, table: dict[int, _procs.Process], boot: str) -> dict[str, Any]:
        """The row of one run; see ``rows``."""
        folder = os.path.join(self.root, name)
        mark = stamp(folder)
        known = self.finished.get(name)
        if known and known[0] == mark:
            return dict(known[1])
        row = empty_row(name, folder)
        why = _runfolder.distrust(folder)
        if why:
            row["note"] = "run folder " + why
            return row
        notes: list[str] = []
        record, problem = self._record(name, folder)
        row.update(record)
        if problem:
            notes.append(problem)
        self._life(row, folder, boot, table, notes)
        row["note"] = "; ".join(notes)
        if row["exit_code"] is not None and not row["alive"] and not notes:
            self.finished[name] = (mark, dict(row))
        return row

    def _record(self, name: str, folder: str) -> tuple[dict[str, Any], str]:
        mark = stamp(os.path.join(folder, "run.json"))
        known = self.records.get(name)
        if known and known[0] == mark:
            return known[1], known[2]
        entry: tuple[Any, dict[str, Any], str]
        try:
            record = _runfolder.read_record(folder, "run.json")
            entry = (mark, {}, "run.json is missing") if record is None else (mark, typed(record), "")
        except (OSError, ValueError, RecursionError) as error:
            entry = (mark, {}, f"run.json is damaged: {reason(error)}")
        self.records[name] = entry
        return entry[1], entry[2]

    def _life(
        self,
        row: dict[str, Any],
        folder: str,
        boot: str,
        table: dict[int, _procs.Process],
        notes: list[str],
    ) -> None:
        """What the folder and /proc say together: alive, ended, cut off."""
        identity = ending = None
        damaged = False
        try:
            identity = _runfolder.read_identity(folder)
        except (OSError, ValueError) as error:
            damaged = True
            notes.append(f"pid file is damaged ({reason(error)}): whether it lives cannot be told")
        try:
            ending = _runfolder.read_exit(folder)
        except (OSError, ValueError) as error:
            notes.append(f"exit file is damaged: {reason(error)}")
        try:
            request = _runfolder.read_record(folder, "stop")
            row["stop_requested_at"] = number(request.get("at")) if request else None
        except (OSError, ValueError, RecursionError):
            notes.append("stop request is damaged")
        row["log_size"] = size(row["log_path"])
        if identity is None:
            if not damaged:
                self._unborn(folder, ending, notes)
            return
        row["pid"], row["pgid"] = identity.pid, identity.pgid
        lives = _runfolder.leader(identity, boot) is not None
        row["alive"] = lives
        if ending is not None and not lives:
            row["exit_code"], row["exited_at"] = ending.code, ending.at
        group = _members.of_group(identity, ending, table, boot, lives)
        row["rss_mib"] = sum(one.rss for one in group) * _procs.PAGE / 2**20 if group else None
        if lives:
            self._watched(row, folder, boot, notes)
        elif identity.boot_id != boot:
            elsewhere = row["machine"] and row["machine"] != os.uname().nodename
            where = f"recorded on {row['machine']}: not to be judged from here"
            if ending is None:
                notes.append(where if elsewhere else "the host was rebooted since: the exit code is unknown")
        elif group:
            row["left"] = len(group)
            notes.append(f"over, but {len(group)} of its processes are left: stop it to remove them")
        elif ending is None and row["manager"] != "adopted":
            notes.append("over, and the exit code was not recorded (its supervisor was killed)")

    @staticmethod
    def _watched(row: dict[str, Any], folder: str, boot: str, notes: list[str]) -> None:
        if row["manager"] == "adopted":
            return
        try:
            supervisor = _runfolder.read_identity(folder, "supervisor")
        except (OSError, ValueError):
            supervisor = None
        if _runfolder.leader(supervisor, boot) is None:
            notes.append("its supervisor is gone: the exit code will not be recorded")

    @staticmethod
    def _unborn(folder: str, ending: _runfolder.Exit | None, notes: list[str]) -> None:
        try:
            age = time.time() - os.stat(folder).st_mtime
        except OSError:
            return
        if ending is None and age < LAUNCH_TAKES_S:
            notes.append("being launched")
            return
        notes.append("its launch was cut off before the server began")
        with contextlib.suppress(OSError):  # usually it is not there
            os.unlink(os.path.join(folder, "environment"))  # may hold secrets, and nobody will read it now


def empty_row(name: str, folder: str) -> dict[str, Any]:
    """A row about which nothing is known yet; all keys that a row has."""
    row: dict[str, Any] = dict.fromkeys(TEXTS, "")
    for key in (
        "port",
        "pid",
        "pgid",
        "started_at",
        "exit_code",
        "exited_at",
        "stop_requested_at",
        "rss_mib",
    ):
        row[key] = None
    row.update(run_id=name, folder=folder, manager="setsid", argv=[], alive=False, left=0, note="")
    row.update(log_path=os.path.join(folder, "log"), log_size=None, log_tail="")
    return row


def typed(record: dict[str, Any]) -> dict[str, Any]:
    """The known entries of a run.json, as far as they are of the right type."""
    out: dict[str, Any] = {
        key: record[key] for key in TEXTS if isinstance(record.get(key), str) and record[key]
    }
    argv = record.get("argv")
    if isinstance(argv, list):
        out["argv"] = [str(part) for part in argv]
    port = record.get("port")
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        out["port"] = port
    if record.get("manager") in MANAGERS:
        out["manager"] = record["manager"]
    if number(record.get("started_at")) is not None:
        out["started_at"] = number(record["started_at"])
    return out


def number(value: object) -> float | None:
    """A figure of a JSON file; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def stamp(path: str) -> Any:
    """Changes whenever a file does, or the names and rights of a folder; None while it is not there."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode, facts.st_uid


def size(path: str) -> int | None:
    """Bytes in a file; None when it is not there or cannot be seen."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def tail(path: str, length: int) -> str:
    """The last ``length`` bytes of a log from a line's begin, as text; empty when it cannot be read."""
    try:
        # Not blocking: a pipe in the place of the log must not hold up the whole list.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - length))
            raw = stream.read(length)
    except OSError:
        return ""
    if end > length:
        raw = raw[raw.find(b"\n") + 1 :]
    return raw.decode("utf-8", "replace")


def reason(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (f"{error}")[:120] or type(error).__name__
