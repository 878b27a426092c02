"""Sent ahead of every program: reads program and request from stdin, runs ``main``, writes the answer.

Python 3.8 or newer, standard library only. The wire is described in ``dflash_backend.ssh.programs``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import traceback
from typing import Any, BinaryIO, Dict  # noqa: UP035

PACKAGE = "dflash_backend.hostside"


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules that came over stdin, as ``dflash_backend.hostside.NAME`` and as ``NAME``."""

    def __init__(self, sources: Dict[str, str]) -> None:  # noqa: UP006
        self.sources = sources

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The specification of one of ours; None leaves the name to the other finders."""
        if fullname in (PACKAGE, PACKAGE.rpartition(".")[0]):
            return importlib.util.spec_from_loader(fullname, self, is_package=True)
        prefix, _, name = fullname.rpartition(".")
        if prefix in ("", PACKAGE) and name in self.sources:
            return importlib.util.spec_from_loader(fullname, self, is_package=False)
        return None

    def is_package(self, fullname: str) -> bool:
        """True for the two packages around the modules."""
        return PACKAGE.startswith(fullname)

    def get_source(self, fullname: str) -> str:
        """The text of a module; the packages are empty."""
        return "" if self.is_package(fullname) else self.sources[fullname.rpartition(".")[2]]


def serve(stdin: BinaryIO) -> int:
    """Runs the program that comes over ``stdin``. Returns the exit status: 0 ok, 1 error was answered."""
    nonce = stdin.readline().strip()
    bundle = json.loads(stdin.readline())
    request = json.loads(stdin.readline())

    # The real standard output is kept for answers; prints and child processes get standard error.
    answers = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(data: bytes) -> None:
        with lock:
            while data:
                data = data[os.write(answers, data) :]

    def emit(value: Any) -> None:
        send(json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    try:
        send(b"\n" + nonce + b"\n")
        sys.meta_path.insert(0, Sources(bundle["sources"]))
        program = importlib.import_module(PACKAGE + "." + bundle["program"])
        emit({"ok": program.main(request, emit, stdin)})
        return 0
    except BrokenPipeError:
        return 1  # the console has gone: nobody is left to answer
    except (Exception, SystemExit) as problem:
        expected = hasattr(problem, "kind")
        what = str(problem) if expected else type(problem).__name__ + ": " + str(problem)
        error = {
            "kind": str(getattr(problem, "kind", "failed")),
            "what": what[:4000],
            "next": str(getattr(problem, "next", ""))[:4000],
        }
        if not expected:
            traceback.print_exc()
        try:
            emit({"error": error})
        except BrokenPipeError:
            return 1
        return 1


if __name__ == "__main__":
    status = serve(sys.stdin.buffer)
    # No interpreter shutdown: a thread that waits on stdin must not hold the process.
    sys.stderr.flush()
    os._exit(status)
