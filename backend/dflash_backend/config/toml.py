"""Strict TOML files: every problem of a file at once, each with file, line and the nearest valid name."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dflash_backend.config.check import check
from dflash_backend.config.locate import Key, KeyLines
from dflash_backend.core.errors import ConfigError
from dflash_backend.core.text import sanitise

MAX_BYTES = 1024 * 1024
"""A configuration file is kilobytes; more is a mistake (a log, a model) and is not parsed."""

_POSITION = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file. ``line`` counts from 1; None when it is about the whole file."""

    path: str
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class FileError(ConfigError):
    """A file with one or more problems; shown one a line, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], *, next_step: str = "") -> None:
        ordered = sorted(problems, key=lambda p: (p.path, p.line or 0))
        first = ordered[0]
        super().__init__(
            first.text, where=f"{first.path}:{first.line}" if first.line else first.path, next_step=next_step
        )
        self.problems = tuple(ordered)

    def lines(self) -> tuple[str, ...]:
        """Each problem as ``file:line: text``, then the next step."""
        shown = [str(problem) for problem in self.problems[:50]]
        if len(self.problems) > 50:
            shown.append(f"… and {len(self.problems) - 50} more")
        return (*shown, *((f"next: {self.next_step}",) if self.next_step else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlFile(Generic[T]):
    """A file that fits its schema. ``raw`` is what tomllib read, to tell "not given" from a default."""

    path: str
    value: T
    raw: dict[str, object]
    text: str
    lines: KeyLines

    def problem(self, key: Key, text: str) -> Problem:
        """A problem at ``key``, for checks that a schema cannot express."""
        return Problem(path=self.path, line=self.lines.line(key), text=text)

    def where(self, *key: str | int) -> str:
        """``file:line`` of a key."""
        line = self.lines.line(key)
        return f"{self.path}:{line}" if line else self.path


def load_toml(path: str | Path, schema: type[T], *, what: str = "file", private: bool = True) -> TomlFile[T]:
    """Reads ``path`` and checks it against ``schema``, a msgspec Struct.

    ``what`` names the kind of file in messages. ``private`` refuses a file that other users of this machine
    can write. Raises FileError (a ConfigError) with every problem found.
    """
    name = sanitise(str(path), multiline=False)
    return parse_toml(read_text(Path(path), what=what, private=private), schema, path=name)


def parse_toml(text: str, schema: type[T], *, path: str) -> TomlFile[T]:
    """Like ``load_toml`` for a text that was already read; ``path`` is used in messages only."""
    lines = KeyLines(text)
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _syntax_error(error, lines, path) from None
    problems: list[Problem] = []
    check(
        raw,
        schema,
        lambda key, message: problems.append(Problem(path=path, line=lines.line(key), text=message)),
    )
    if problems:
        raise FileError(problems)
    return TomlFile(path=path, value=msgspec.convert(raw, schema), raw=raw, text=text, lines=lines)


def read_text(path: Path, *, what: str = "file", private: bool = True) -> str:
    """The text of a file without byte order mark. Raises FileError for anything that is not one."""
    shown = sanitise(str(path), multiline=False)

    def wrong(text: str, next_step: str = "", line: int | None = None) -> FileError:
        return FileError([Problem(path=shown, line=line, text=text)], next_step=next_step)

    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise wrong(f"is a folder, not a {what}")
        if not stat.S_ISREG(status.st_mode):
            raise wrong(f"is not a regular file, so no {what} is read from it")
        if private and (reason := writable_by_others(status)):
            raise wrong(f"{reason}, so it is not trusted", f"chmod go-w {shown}")
        if status.st_size > MAX_BYTES:
            raise wrong(f"is {status.st_size / 1e6:.1f} MB; a {what} has at most {MAX_BYTES // 1024} KiB")
        data = path.read_bytes()
    except FileNotFoundError:
        raise wrong(f"there is no such {what}") from None
    except PermissionError:
        raise wrong("cannot be read: permission denied", f"chmod u+r {shown}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise wrong(f"cannot be read: {sanitise(reason, multiline=False)}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(f"is not UTF-8 text (byte 0x{data[error.start]:02x})", "save it as UTF-8", line) from None


def writable_by_others(status: os.stat_result) -> str | None:
    """Why other users can change a file with this status, or None. A user's own private group is fine."""
    mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_mode & stat.S_IWOTH:
        return f"every user of this machine can change it ({mode})"
    if status.st_mode & stat.S_IWGRP and not _own_group(status):
        return f"other users of its group can change it ({mode})"
    return None


def _own_group(status: os.stat_result) -> bool:
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return (
        owner.pw_gid == group.gr_gid
        and group.gr_name == owner.pw_name
        and set(group.gr_mem) <= {owner.pw_name}
    )


def _syntax_error(error: Exception, lines: KeyLines, path: str) -> FileError:
    if lines.duplicates:
        return FileError(
            [
                Problem(
                    path=path,
                    line=again,
                    text=f"'{sanitise('.'.join(map(str, key)), multiline=False, limit=100)}' is given twice "
                    f"(first on line {first})",
                )
                for key, first, again in lines.duplicates
            ]
        )
    message = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "nested too deeply"
    match = _POSITION.search(message)
    text = sanitise(_POSITION.sub("", message), multiline=False, limit=200)
    line = int(match[1]) if match and match[1] else None
    column = f" (column {match[2]})" if match and match[2] else " (at the end of the file)" if match else ""
    return FileError([Problem(path=path, line=line, text=f"not valid TOML: {text}{column}")])
