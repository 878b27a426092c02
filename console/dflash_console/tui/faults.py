"""What happens to errors nobody expected: written to a file without secrets, told in one plain message.

Textual's own handler prints a traceback with the values of local variables, which may hold secrets.
"""

from __future__ import annotations

import logging
import traceback
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dflash_backend.core.paths import ensure_dir, state_dir
from dflash_backend.core.text import redact, sanitise

LOGGER = "dflash_console"
_SIZE = 1_000_000
_KEEP = 3


class _Redacted(logging.Formatter):
    """One safe line for each line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        return sanitise(redact(super().format(record)), limit=20_000)


def log_to_file(folder: Path | None) -> Path | None:
    """Sends the console's log to ``console.log`` (rotating, 0600); None when the folder cannot be written."""
    path = (folder or state_dir()) / "console.log"
    logger = logging.getLogger(LOGGER)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    try:
        ensure_dir(path.parent)
        path.touch(mode=0o600)
        path.chmod(0o600)
        handler = RotatingFileHandler(path, maxBytes=_SIZE, backupCount=_KEEP, encoding="utf-8", delay=True)
    except OSError:
        logger.addHandler(logging.NullHandler())
        return None
    handler.setFormatter(_Redacted("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    return path


def log_error(error: BaseException) -> None:
    """Writes an error with its traceback, without local variables."""
    text = "".join(traceback.format_exception(error))
    logging.getLogger(f"{LOGGER}.tui").error("unexpected error\n%s", text)


def last_words(error: BaseException, log: Path | None) -> str:
    """What the user reads when the console has to stop."""
    what = sanitise(redact(f"{type(error).__name__}: {error}"), multiline=False, limit=300)
    where = f"details: {log}" if log else "the console's log could not be written"
    return (
        f"dflash-console stopped because of an error in itself: {what}\n"
        f"{where}\n"
        "unchanged: servers go on as they were; start the console again to see them"
    )
