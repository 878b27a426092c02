"""Where a command writes: results to standard output, all else to standard error, all of it harmless."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from dflash_backend.core.errors import ConsoleError
from dflash_backend.core.text import redact, sanitise

SCHEMA = 1


class Output:
    """Text or JSON on ``stdout``, notes and errors on ``stderr``; no colours: pipes and logs read it too."""

    def __init__(
        self, *, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._progress = False

    def document(self, value: Mapping[str, Any]) -> None:
        """One JSON document on one line of its own when it belongs to a stream, indented otherwise."""
        text = json.dumps({"schema": SCHEMA, **value}, ensure_ascii=False, indent=2, allow_nan=False)
        self._stdout.write(text + "\n")
        self._stdout.flush()

    def event(self, value: Mapping[str, Any]) -> None:
        """One line of a JSON stream."""
        text = json.dumps(
            {"schema": SCHEMA, **value}, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        self._stdout.write(text + "\n")
        self._stdout.flush()

    def line(self, text: str = "") -> None:
        """A line of the result, for people; call it only without ``--json``."""
        self._end_progress()
        self._stdout.write(sanitise(text) + "\n")

    def raw(self, text: str) -> None:
        """Text that was cleaned before and may be large."""
        self._stdout.write(text)

    def flush(self) -> None:
        """Sends what was written; for streams that a person watches."""
        self._stdout.flush()

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their widest cell; the last one is not padded."""
        cells = [[sanitise(cell, multiline=False) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
        for row in [list(headers), *cells]:
            padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            self._stdout.write("  ".join([*padded, row[-1]]).rstrip() + "\n")

    def progress(self, text: str) -> None:
        """What is going on: one line rewritten in place at a terminal, nothing elsewhere."""
        if self._stderr.isatty():
            self._stderr.write("\r\x1b[K" + redact(sanitise(text, multiline=False, limit=150)))
            self._stderr.flush()
            self._progress = True

    def _end_progress(self) -> None:
        if self._progress:
            self._progress = False
            self._stderr.write("\r\x1b[K")

    def note(self, text: str) -> None:
        """Progress or a remark, on standard error."""
        self._end_progress()
        self._stderr.write(redact(sanitise(text)) + "\n")
        self._stderr.flush()

    def error(self, error: ConsoleError) -> None:
        """The error's lines on standard error; with ``--json`` also as the document on standard output."""
        first, *rest = error.lines()
        name = "" if first.startswith("dflash-console") else "dflash-console: "
        self._stderr.write(f"{name}{redact(sanitise(first))}\n")
        for line in rest:
            self._stderr.write(f"  {redact(sanitise(line))}\n")
        self._stderr.flush()
        if self.as_json:
            self.document(
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


def tolerant_streams() -> None:
    """A terminal that cannot show a character shows a question mark; it never ends a command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def abandon_stdout() -> None:
    """After a broken pipe: what is still buffered goes nowhere, so that the interpreter ends in silence."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
