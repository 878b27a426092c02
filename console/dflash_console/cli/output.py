"""Where a command writes: results to standard output, all else to standard error, all of it harmless."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.text import redact, sanitise

SCHEMA = 1
_PLAIN = {
    "–": "-",
    "—": "-",
    "…": "...",
    "✓": "ok",
    "✖": "FAILED",
    "→": "->",
    "×": "x",
    "·": "-",
    "“": '"',
    "”": '"',
}
"""What is written where a terminal's encoding lacks a character; everything else becomes ``?``."""


class Output:
    """Text or JSON on ``stdout``, notes and errors on ``stderr``; no colours: pipes and logs read it too."""

    def __init__(
        self, *, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._progress = False
        self.must_not_fail = False
        """True while something is being changed: a reader that has gone (``| head``) or a full disk must not
        end an action in its middle, so what cannot be written is left out."""

    def _write(self, text: str, *, flush: bool = False) -> None:
        try:
            self._stdout.write(text)
            if flush:
                self._stdout.flush()
        except OSError:
            if not self.must_not_fail:
                raise
            abandon(self._stdout)

    def _tell(self, text: str) -> None:
        # Nobody is left to be told when this fails, and it is never the result.
        with contextlib.suppress(OSError):
            self._stderr.write(text)
            self._stderr.flush()

    def document(self, value: Mapping[str, Any]) -> None:
        """One JSON document on one line of its own when it belongs to a stream, indented otherwise."""
        text = json.dumps({"schema": SCHEMA, **value}, ensure_ascii=False, indent=2, allow_nan=False)
        self._write(text + "\n", flush=True)

    def event(self, value: Mapping[str, Any]) -> None:
        """One line of a JSON stream."""
        text = json.dumps(
            {"schema": SCHEMA, **value}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        self._write(text + "\n", flush=True)

    def line(self, text: str = "") -> None:
        """A line of the result, for people; call it only without ``--json``."""
        self._end_progress()
        self._write(sanitise(text) + "\n")

    def raw(self, text: str) -> None:
        """Text that was cleaned before and may be large."""
        self._write(text)

    def flush(self) -> None:
        """Sends what was written; for streams that a person watches."""
        self._write("", flush=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their widest cell; the last one is not padded."""
        cells = [[sanitise(cell, multiline=False) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
        for row in [list(headers), *cells]:
            padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            self._write("  ".join([*padded, row[-1]]).rstrip() + "\n")

    def progress(self, text: str) -> None:
        """What is going on: one line rewritten in place at a terminal, nothing elsewhere."""
        if self._stderr.isatty():
            self._tell("\r\x1b[K" + redact(sanitise(text, multiline=False, limit=150)))
            self._progress = True

    def _end_progress(self) -> None:
        if self._progress:
            self._progress = False
            self._tell("\r\x1b[K")

    def note(self, text: str) -> None:
        """Progress or a remark, on standard error."""
        self._end_progress()
        self._tell(redact(sanitise(text)) + "\n")

    def error(self, error: ConsoleError) -> None:
        """The error's lines on standard error; with ``--json`` also as the document on standard output."""
        self._end_progress()
        first, *rest = error.lines()
        name = "" if first.startswith("dflash-console") else "dflash-console: "
        self._tell(f"{name}{redact(sanitise(first))}\n")
        for line in rest:
            self._tell(f"  {redact(sanitise(line))}\n")
        if self.as_json:
            # One line: it may come after lines of a stream, and is read as a whole document just as well.
            self.event(
                {
                    "error": {
                        "kind": error.kind,
                        "what": redact(sanitise(error.what)),
                        "where": redact(sanitise(error.where)),
                        "unchanged": redact(sanitise(error.unchanged)),
                        "next_step": redact(sanitise(error.next_step)),
                        "lines": [redact(sanitise(line)) for line in error.lines()],
                        "exit_code": error.exit_code,
                    }
                }
            )


def usable_streams() -> None:
    """Standard streams that can be written to, whatever the caller has closed and whatever the locale is.

    A closed descriptor is opened on nothing: else the next socket or file would get its number, and our
    output. A character that the encoding lacks becomes a plain one; it never ends a command.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in text), error.end


def abandon(stream: TextIO) -> None:
    """After a broken pipe: what is still buffered goes nowhere, so that the interpreter ends in silence."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
