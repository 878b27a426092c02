"""What a command is: a leaf that runs, or a group of leaves."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_console.cli.output import Output

if TYPE_CHECKING:
    from dflash_backend.core.inventory import Inventory
    from dflash_backend.profiles.store import ProfileStore


class Context:
    """What every command gets: the global options, the output, and the configuration when it is asked for."""

    def __init__(self, *, config: str | None, read_only: bool, output: Output) -> None:
        self.config = config
        self.out = output
        self.left = "nothing was changed"
        """The state that an interrupted command leaves, told on Ctrl-C; a command that acts sets it."""
        self.acting = False
        """True once something may have been changed: a crash is then no longer harmless."""
        self._read_only = read_only
        self._inventory: Inventory | None = None

    def began(self, left: str) -> None:
        """Something is being changed from now on; ``left`` is the state that an end now would leave."""
        self.acting = True
        self.left = left

    def set_read_only(self, read_only: bool) -> None:
        """As ``--read-only`` says; the configuration may forbid changes as well."""
        self._read_only = read_only

    @property
    def inventory(self) -> Inventory:
        """The configuration, read once. Raises ConfigError."""
        if self._inventory is None:
            from dflash_backend.config.inventory import load_inventory

            self._inventory = load_inventory(self.config)
        return self._inventory

    @property
    def profiles(self) -> ProfileStore:
        """The profiles that the configuration gives access to."""
        from dflash_backend.profiles.store import ProfileStore

        return ProfileStore.of(self.inventory)

    @property
    def read_only_asked(self) -> bool:
        """True with ``--read-only``; the configuration is not looked at."""
        return self._read_only

    @property
    def read_only(self) -> bool:
        """True when ``--read-only`` or the configuration forbids changes."""
        return self._read_only or self.inventory.read_only


Run = Callable[[argparse.Namespace, Context], int | Awaitable[int]]
"""Runs a command and gives its exit code; may be a coroutine function. Raises ConsoleError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A command that runs. ``configure`` adds its arguments to a parser."""

    help: str
    run: Run
    configure: Callable[[argparse.ArgumentParser], None] | None = None
    description: str = ""
    passthrough: bool = False
    """Arguments are handed on as they are (``args.rest``), also ``--help``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A command with subcommands."""

    help: str
    commands: Mapping[str, Leaf]


Command = Leaf | Group


def path_argument(text: str) -> Path:
    """An argparse type for files: ``~`` is the home folder."""
    return Path(text).expanduser()
