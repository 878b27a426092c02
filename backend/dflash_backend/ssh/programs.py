"""Programs of ``dflash_backend.hostside`` on the host: how they are sent and how their answers are read.

The command is ``PYTHON -I -c BOOTSTRAP NAME``; nothing is written to the host's disk. On stdin, in this
order:

    number of bytes of prelude.py, newline, those bytes
    nonce, newline                       (random, so that nothing printed earlier can be taken for it)
    {"program": NAME, "sources": {module: source}} as one line of JSON, newline
    the request as one line of JSON, newline
    … whatever the program reads further

On stdout: anything that shell start-up files print, then newline + nonce + newline, then JSON lines, the last
of which is ``{"ok": …}`` or ``{"error": {"kind", "what", "next"}}``. Every string in them is sanitised here.
"""

from __future__ import annotations

import ast
import json
import secrets as random_source
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from dflash_backend.core.errors import (
    ConfigError,
    ConsoleError,
    FailedError,
    RefusedError,
    UnreachableError,
    UnrestoredError,
    UsageError,
)
from dflash_backend.core.text import redact, sanitise

MAX_NOISE = 1024 * 1024
"""Bytes of shell start-up output that are skipped while looking for the nonce."""
MAX_ANSWER = 32 * 1024 * 1024
"""Bytes of one JSON line; a longer one is an error."""

TOO_OLD = 98
NO_PYTHON = 97

_BOOTSTRAP = (
    "import sys;sys.version_info<(3,8) and sys.exit(98);b=sys.stdin.buffer;"
    "exec(compile(b.read(int(b.readline())),'<dflash-console>','exec'))"
)
# Expands ~, looks into a venv folder, and says which interpreter is missing. 97 is NO_PYTHON.
_FIND_PYTHON = (
    'p=$1; case $p in "~/"*) p=$HOME/${p#"~/"};; esac; '
    'if [ -d "$p" ]; then if [ -x "$p/bin/python" ]; then p=$p/bin/python; else p=$p/bin/python3; fi; fi; '
    'command -v "$p" >/dev/null 2>&1 || exit 97; exec "$p" -I -c "$2" "$3"'
)

_KINDS: Mapping[str, type[ConsoleError]] = {
    kind.kind: kind
    for kind in (UsageError, ConfigError, UnreachableError, RefusedError, FailedError, UnrestoredError)
}


def program_argv(program: str, python: str | None) -> list[str]:
    """The command that waits for a program on stdin. ``python``: interpreter or venv folder on the host."""
    return ["sh", "-c", _FIND_PYTHON, "dflash-console", python or "python3", _BOOTSTRAP, program]


PROGRAMS: Traversable = files("dflash_backend.hostside")
"""Where the programs are read from."""


@lru_cache(maxsize=32)
def _source(module: str) -> str:
    file = PROGRAMS.joinpath(f"{module}.py")
    if not module.isidentifier() or not file.is_file():
        raise UsageError(f"there is no host program {module!r}")
    return file.read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def program_sources(program: str) -> Mapping[str, str]:
    """Source of ``program`` and of the sibling modules that it imports, at any depth, by module name."""
    sources = {program: _source(program)}
    waiting = [program]
    while waiting:
        for name in _imports(sources[waiting.pop()]):
            if name not in sources and PROGRAMS.joinpath(f"{name}.py").is_file():
                sources[name] = _source(name)
                waiting.append(name)
    return sources


def _imports(source: str) -> Iterator[str]:
    package = "dflash_backend.hostside"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix(f"{package}.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.removeprefix(f"{package}.")


def program_input(program: str, request: object) -> tuple[bytes, bytes]:
    """(what goes to stdin, the nonce that the answer starts with). Raises UsageError: no such program."""
    nonce = f"dflash-{random_source.token_hex(16)}".encode()
    prelude = _source("prelude").encode()
    bundle = json.dumps({"program": program, "sources": program_sources(program)}).encode()
    line = json.dumps(request, separators=(",", ":")).encode()
    return b"%d\n%s%s\n%s\n%s\n" % (len(prelude), prelude, nonce, bundle, line), nonce


class Preamble:
    """Drops what the shell's start-up files print, up to the nonce. At most MAX_NOISE bytes are searched."""

    def __init__(self, nonce: bytes) -> None:
        self._mark = b"\n" + nonce + b"\n"
        self._noise = bytearray()
        self.passed = False
        """True once the program has been reached: what is wrong from then on is not the interpreter."""

    def feed(self, chunk: bytes) -> bytes:
        """The part of ``chunk`` that the program wrote. Raises FailedError on endless noise."""
        if self.passed:
            return chunk
        self._noise += chunk
        at = self._noise.find(self._mark)
        if at >= 0:
            self.passed = True
            rest = bytes(self._noise[at + len(self._mark) :])
            self._noise.clear()
            return rest
        if len(self._noise) > MAX_NOISE:
            raise FailedError(
                f"the host printed more than {MAX_NOISE} bytes before the program started",
                next_step="look for commands in the shell's start-up files that print without end",
            )
        return b""


class JsonLines:
    """Cuts a byte stream into decoded JSON lines; memory is bounded by MAX_ANSWER."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, chunk: bytes) -> list[object]:
        """The messages that are complete with this chunk. Raises FailedError for what is not JSON lines."""
        self._buffer += chunk
        messages: list[object] = []
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end < 0:
                self._scanned = len(self._buffer)
                if self._scanned > MAX_ANSWER:
                    raise FailedError(f"the host's answer is longer than {MAX_ANSWER} bytes")
                return messages
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._scanned = 0
            if line.strip():
                messages.append(decode(line))


def decode(line: bytes) -> object:
    """One JSON line as clean Python values: strings sanitised, NaN and infinity None. Raises FailedError."""
    try:
        return _clean(json.loads(line, parse_constant=lambda _: None))
    except (ValueError, RecursionError) as problem:
        shown = sanitise(line[:200], multiline=False)
        raise FailedError(f"the host answered something that is not JSON: {shown!r}") from problem


def _clean(value: object) -> object:
    if isinstance(value, str):
        return sanitise(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {sanitise(key): _clean(item) for key, item in value.items()}
    return value


def result(message: object, *, host: str, secrets: Sequence[str] = ()) -> object:
    """The value of a final message ``{"ok": …}``. Raises the error that ``{"error": …}`` stands for."""
    if isinstance(message, dict):
        if "ok" in message:
            return message["ok"]
        error = message.get("error")
        if isinstance(error, dict):
            kind = _KINDS.get(str(error.get("kind")), FailedError)
            raise kind(
                redact(str(error.get("what") or "the host gave no reason"), secrets),
                where=host,
                next_step=redact(str(error.get("next") or ""), secrets),
            )
    raise FailedError("the host's program gave no answer", where=host)


def not_started(status: int, stderr: bytes, *, host: str, python: str | None) -> ConsoleError:
    """The error for a program whose interpreter never reached it."""
    name = python or "python3"
    set_python = f"set python of {host} to an interpreter or a venv folder with Python 3.8 or newer"
    if status in (NO_PYTHON, 127):
        return ConfigError(f"no Python interpreter {name!r} on the host", where=host, next_step=set_python)
    if status == TOO_OLD:
        return ConfigError(f"Python interpreter {name!r} is older than 3.8", where=host, next_step=set_python)
    lines = sanitise(stderr[-2000:]).strip().splitlines()
    said = f": {redact(lines[-1])[:300]}" if lines else ""
    return FailedError(
        f"Python interpreter {name!r} did not start (exit {status}){said}",
        where=host,
        next_step=f"run it by hand on the host, or {set_python}",
    )
