"""Remarks of libraries and of our own services go to the console's log, not between a command's lines."""

from __future__ import annotations

import contextlib
import logging

from dflash_backend.core.paths import append_line, state_dir
from dflash_backend.core.text import redact, sanitise

SIZE = 4 * 1024 * 1024
"""Bytes after which the log begins anew; the one before is kept."""


class ConsoleLog(logging.Handler):
    """Appends warnings and worse to ``console.log`` in the state folder, harmless and without secrets.

    The file is opened for each record: it may be rotated by another console. A full disk loses records.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler.emit``."""
        path = state_dir() / "console.log"
        text = sanitise(redact(self.format(record)), limit=20_000)
        with contextlib.suppress(OSError):
            if path.exists() and path.stat().st_size > SIZE:
                path.replace(path.with_name("console.log.1"))
            append_line(path, text)


def keep_log() -> None:
    """Sends what is logged from now on to the file; without a handler Python prints it to standard error."""
    root = logging.getLogger()
    if not any(isinstance(handler, ConsoleLog) for handler in root.handlers):
        handler = ConsoleLog(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root.addHandler(handler)
