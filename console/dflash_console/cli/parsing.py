"""Arguments: the global options before the command, one parser per command, errors with the nearest name."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from dflash_backend.core.errors import UsageError
from dflash_backend.core.text import sanitise

PROGRAM = "dflash-console"
_CHOICE = re.compile(r"argument .*: invalid choice: (?P<given>.*) \(choose from (?P<choices>.*)\)", re.DOTALL)
_UNRECOGNISED = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process, and names the nearest option."""

    def __init__(self, *, prog: str, description: str = "", epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Every mistake of argparse comes here."""
        match = _UNRECOGNISED.fullmatch(message)
        step = f"{self.prog} --help"
        if match:
            word = match[1].split()[0] if match[1].split() else ""
            options = [option for action in self._actions for option in action.option_strings]
            near = nearest(word.partition("=")[0], options) if word.startswith("-") else None
            step = f"did you mean {near}? ({step})" if near else step
        choice = _CHOICE.fullmatch(message)
        if choice:
            near = nearest(choice["given"].strip("'"), [c.strip(" '") for c in choice["choices"].split(",")])
            step = f"did you mean {near}? ({step})" if near else step
        raise UsageError(sanitise(message, multiline=False, limit=300), where=self.prog, next_step=step)


def add_globals(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    """Options that are taken before the command and after it."""
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="configuration file (else DFLASH_CONSOLE_CONFIG)",
    )
    group.add_argument(
        "--read-only",
        action="store_true",
        default=argparse.SUPPRESS,
        help="refuse everything that changes something",
    )
    if json:
        group.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="one JSON document on standard output",
        )


def split(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """(global options, command or None, its arguments). The first word that is no option is the command."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if not word.startswith("-") or word == "-":
            return list(argv[:index]), word, list(argv[index + 1 :])
        index += 2 if word == "--config" else 1
    return list(argv), None, []


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The most similar of ``names``, or None."""
    found = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(word: str, names: Iterable[str], *, prog: str, what: str) -> UsageError:
    """The error for a command that does not exist."""
    known = list(names)
    near = nearest(word, known)
    return UsageError(
        f"there is no {what} '{sanitise(word, multiline=False, limit=60)}'",
        where=prog,
        next_step=f"did you mean '{near}'?" if near else f"one of: {', '.join(known)}",
    )
