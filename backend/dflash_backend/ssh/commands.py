"""Remote commands from argument lists: the one module that quotes for a remote shell.

sshd hands the command, one string, to the user's login shell: sh, bash and zsh, but fish and csh as well,
which read quotes in their own way (fish: a backslash inside single quotes; csh: ``!`` and newlines even
there; zsh: a word that starts with ``=``). So only text on which all of them agree is sent: words of harmless
characters, and single-quoted words without quotes, backslashes, ``!``, control and non-ASCII characters.
Everything else travels as octal escapes to a POSIX ``sh`` that restores it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from dflash_backend.core.errors import UsageError

MAX_COMMAND = 120 * 1024
"""Bytes; Linux refuses a single argument over 128 KiB."""

_BARE = re.compile(r"[A-Za-z0-9_./:,+-]+")
_SAME_IN_EVERY_SHELL = re.compile(r"[ -&(-\[\]-~]*")  # printable ASCII without ' and \
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEPT = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")


def shell_command(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """The command string that makes any login shell become exactly ``argv`` with ``env`` added.

    Raises UsageError for what cannot be an argument (empty list, NUL, too long) or a variable's name.
    """
    words = [*_env_words(env or {}), *argv]
    if not argv or not argv[0]:
        raise UsageError("an empty command cannot be run")
    for word in words:
        if "\0" in word:
            raise UsageError("an argument holds a NUL byte", next_step="remove the NUL byte")
    if all(_plain(word) for word in words):
        command = "exec " + " ".join(word if _BARE.fullmatch(word) else f"'{word}'" for word in words)
    else:
        command = f"exec sh -c 'eval \"exec $(printf %b \"$1\")\"' sh '{_octal(shlex.join(words))}'"
    if len(command) > MAX_COMMAND:
        raise UsageError(
            f"the command is too long for a remote shell ({len(command)} bytes)",
            next_step="send large input over stdin",
        )
    return command


def traced(argv: Sequence[str], mark: str) -> list[str]:
    """``argv`` behind a shell that first tells, on standard error, which process group it is.

    The line is ``MARK GROUP``. A command whose group is not its own tells ``MARK 0``: it must not be
    signalled as a group, since others may be in it.
    """
    return ["sh", "-c", _TELL_GROUP, mark, *argv]


def end_group(group: int) -> list[str]:
    """The command that ends a process group: TERM, up to two seconds of grace, KILL."""
    return ["sh", "-c", _END_GROUP, "sh", str(group)]


# /proc/PID/stat: pid, (name), state, parent, group.
_TELL_GROUP = (
    "{ read -r pid b c d group rest </proc/$$/stat; } 2>/dev/null; "
    '[ "$group" = $$ ] || group=0; echo "$0 $group" >&2; exec "$@"'
)
_END_GROUP = (
    'kill -s TERM -- "-$1" || exit 0; n=0; '
    'while kill -s 0 -- "-$1" 2>/dev/null && [ $n -lt 20 ]; do n=$((n+1)); sleep 0.1; done; '
    'kill -s KILL -- "-$1"; exit 0'
)


def _plain(word: str) -> bool:
    return _SAME_IN_EVERY_SHELL.fullmatch(word) is not None and "!" not in word


def _octal(text: str) -> str:
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _KEPT else f"\\0{byte:03o}" for byte in data)


def _env_words(env: Mapping[str, str]) -> list[str]:
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of an environment variable",
                next_step="use letters, digits and underscores",
            )
    return ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
