"""The action log: every action, written before it runs and after, append-only, without secrets."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.paths import append_line, state_dir
from dflash_backend.core.text import redact_mapping


def who() -> str:
    """The local user and machine, as written into the log and into run folders."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"


class ActionLog:
    """JSON lines in the state folder, mode 0600, one for the intention and one for the end.

    An intention without an end means that the console died in between: the reader sees it.
    Raises OSError when the log cannot be written; an action must not run unlogged.
    """

    def __init__(self, path: Path | None = None, clock: Clock = wall) -> None:
        self.path = path or state_dir() / "actions.jsonl"
        self._clock = clock
        self._count = 0

    def begin(self, action: str, *, server: str, host: str, details: Mapping[str, object]) -> str:
        """Writes the intention and returns the id that :meth:`end` wants."""
        self._count += 1
        ident = f"{int(self._clock() * 1000):x}-{self._count}"
        self._write(ident, "begin", action, server=server, host=host, details=details)
        return ident

    def end(
        self, ident: str, action: str, *, server: str, host: str, ok: bool, details: Mapping[str, object]
    ) -> None:
        """Writes how it ended."""
        self._write(ident, "end", action, server=server, host=host, details={"ok": ok, **details})

    def entries(self) -> Iterator[dict[str, object]]:
        """All readable entries, oldest first; a damaged line is skipped."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry

    def _write(
        self, ident: str, phase: str, action: str, *, server: str, host: str, details: Mapping[str, object]
    ) -> None:
        at = dt.datetime.fromtimestamp(self._clock(), dt.UTC).isoformat(timespec="milliseconds")
        entry = {
            "schema": 1,
            "at": at,
            "id": ident,
            "phase": phase,
            "action": action,
            "server": server,
            "host": host,
            "who": who(),
            "details": redact_mapping(dict(details)),
        }
        append_line(self.path, json.dumps(entry, ensure_ascii=False, default=str))
