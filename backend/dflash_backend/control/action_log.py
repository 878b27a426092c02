"""The action log: every action, written before it runs and after, append-only, without secrets."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_backend.core.clock import Clock, wall
from dflash_backend.core.errors import FailedError
from dflash_backend.core.paths import append_line, state_dir
from dflash_backend.core.text import redact_mapping

log = logging.getLogger(__name__)


def who() -> str:
    """The local user and machine, as written into the log and into run folders."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"


class ActionLog:
    """JSON lines in the state folder, mode 0600, one for the intention and one for the end.

    An intention without an end means that the console died in between, or that the end could not be written:
    the reader sees it.
    """

    def __init__(self, path: Path | None = None, clock: Clock = wall) -> None:
        self.path = path or state_dir() / "actions.jsonl"
        self._clock = clock
        self._count = 0

    def begin(self, action: str, *, server: str, host: str, details: Mapping[str, object]) -> str:
        """Writes the intention and returns the id that :meth:`end` wants.

        Raises FailedError when it cannot be written: no action runs unlogged.
        """
        self._count += 1
        ident = f"{int(self._clock() * 1000):x}-{self._count}"
        try:
            self._write(ident, "begin", action, server=server, host=host, details=details)
        except OSError as error:
            raise FailedError(
                f"the action log cannot be written: {error.strerror or error}",
                where=str(self.path),
                unchanged="nothing was done: no action runs unlogged",
                next_step="make room there, or set XDG_STATE_HOME to a folder that can be written",
            ) from error
        return ident

    def end(
        self, ident: str, action: str, *, server: str, host: str, ok: bool, details: Mapping[str, object]
    ) -> None:
        """Writes how it ended. What was done is done: a full disk is noted in the console's log only."""
        try:
            self._write(ident, "end", action, server=server, host=host, details={"ok": ok, **details})
        except OSError as error:
            log.warning("%s: the end of %s of %s cannot be written: %s", self.path, action, server, error)

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
