"""Errors as part of the interface: what happened, where, what was left unchanged, what to do next."""

from __future__ import annotations

from typing import ClassVar


class ConsoleError(Exception):
    """Base of every error that a user may see; never shown as a traceback.

    ``exit_code`` is the command line's exit code for this kind of error (see the table in the README).
    """

    exit_code: ClassVar[int] = 5
    kind: ClassVar[str] = "error"

    def __init__(self, what: str, *, where: str = "", unchanged: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.unchanged = unchanged
        self.next_step = next_step

    def lines(self) -> tuple[str, ...]:
        """The message as plain lines, most important first; empty parts are left out."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        rest = (
            ("unchanged: ", self.unchanged),
            ("next: ", self.next_step),
        )
        return (head, *(label + text for label, text in rest if text))

    def __str__(self) -> str:
        return "\n".join(self.lines())


class UsageError(ConsoleError):
    """Bad usage of the command line, or of a function behind it. Exit 2."""

    exit_code = 2
    kind = "usage"


class ConfigError(ConsoleError):
    """A configuration, profile or job file is wrong; ``where`` is ``file:line``. Exit 2."""

    exit_code = 2
    kind = "config"


class UnreachableError(ConsoleError):
    """A host or a server did not answer: says nothing about whether it lives. Exit 3."""

    exit_code = 3
    kind = "unreachable"


class RefusedError(ConsoleError):
    """Not allowed: read-only, an untrusted or changed key, an unsafe flag, not ours. Exit 4."""

    exit_code = 4
    kind = "refused"


class FailedError(ConsoleError):
    """An action failed, and what was there before is still there or has been restored. Exit 5."""

    exit_code = 5
    kind = "failed"


class UnrestoredError(ConsoleError):
    """An action failed and the state before it could not be restored. Exit 6."""

    exit_code = 6
    kind = "unrestored"
