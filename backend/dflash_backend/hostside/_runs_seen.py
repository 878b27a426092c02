"""What the monitor tells of the runs: the newest of each server, all that live, and what their logs got."""

from __future__ import annotations

import os
from typing import Any

from dflash_backend.hostside import _host, _runlist

FIRST_BYTES = 16 * 1024
FAILED_BYTES = 64 * 1024
"""Of a run that failed before anybody looked: the reason may stand far above the last traceback."""
STEP_BYTES = 64 * 1024
STATIC = ("argv", "profile", "profile_digest", "profile_toml", "started_by", "machine", "log_path")
"""Sent once: they never change and are by far the longest."""
MAX_RUNS = 64


class LogEnd:
    """Where the reading of one log stands."""

    def __init__(self) -> None:
        self.inode: int | None = None
        self.offset = 0
        self.partial = b""


class RunsSeen:
    """Keeps what was told before, so that each tick carries only what is new."""

    def __init__(self, root: str | None = None) -> None:
        self.runs = _runlist.RunList(root)
        self.root = self.runs.root
        self.table = _host.Table()
        self.told: dict[str, tuple[Any, ...]] = {}
        self.logs: dict[str, LogEnd] = {}

    def read(self) -> list[dict[str, Any]]:
        """Rows for the newest run of each server and for every living one."""
        rows = self._shown(self.runs.rows(table=self.table.refresh(), tails=False))
        if self.table.follow(row["pgid"] for row in rows if row["alive"] and row["pgid"]):
            # Memory of a group that has just appeared, without waiting for the next tick.
            rows = self._shown(self.runs.rows(table=self.table.refresh(), tails=False))
        present = {row["run_id"] for row in rows}
        self.told = {run: mark for run, mark in self.told.items() if run in present}
        self.logs = {run: end for run, end in self.logs.items() if run in present}
        return [self._new_of(row) for row in rows]

    @staticmethod
    def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        servers: set[str] = set()
        shown = []
        for row in rows:
            if row["alive"] or row["server"] not in servers:
                servers.add(row["server"])
                shown.append(dict(row))
        return shown[:MAX_RUNS]

    def _new_of(self, row: dict[str, Any]) -> dict[str, Any]:
        run = row["run_id"]
        row.pop("log_tail", None)
        log = self._log(run, row)
        if log is not None:
            row["log"] = log
        static = tuple(repr(row.get(key)) for key in STATIC)
        if self.told.get(run) == static:
            for key in STATIC:
                row.pop(key, None)
        self.told[run] = static
        return row

    def _log(self, run: str, row: dict[str, Any]) -> dict[str, Any] | None:
        """Whole new lines of the log and its unfinished last one; None while it did not change.

        ``reset``: these lines do not continue the earlier ones (first look, rotation, truncation, too many).
        """
        end = self.logs.setdefault(run, LogEnd())
        try:
            facts = os.stat(row["log_path"])
        except OSError:
            return None
        if facts.st_ino == end.inode and facts.st_size == end.offset:
            return None
        reset = facts.st_ino != end.inode or facts.st_size < end.offset
        start = end.offset
        if reset:
            failed = not row["alive"] and row["exit_code"] not in (None, 0)
            start = max(0, facts.st_size - (FAILED_BYTES if failed else FIRST_BYTES))
            end.partial = b""
        elif facts.st_size - start > STEP_BYTES:
            start, reset, end.partial = facts.st_size - STEP_BYTES, True, b""
        try:
            with open(row["log_path"], "rb") as stream:
                stream.seek(start)
                data = stream.read(facts.st_size - start)
        except OSError:
            return None
        end.inode, end.offset = facts.st_ino, start + len(data)
        if reset and start:
            data = data[data.find(b"\n") + 1 :]
        data = end.partial + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > STEP_BYTES:
            cut = len(data)
        end.partial = data[cut:]
        return {
            "reset": reset,
            "text": data[:cut].decode("utf-8", "replace"),
            "partial": end.partial[-4096:].decode("utf-8", "replace"),
        }
