"""The profile: a saved, named way to launch or tune a server. Pure data, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OptionValue = bool | int | float | str


class Algorithm(enum.StrEnum):
    """Speculative algorithm of a server, in the words of the command line and of JSON output."""

    NONE = "NONE"
    DFLASH = "DFLASH"
    DDTREE = "DDTREE"


class Program(enum.StrEnum):
    """Which server program a profile launches."""

    SGLANG = "sglang"
    REFERENCE = "reference-engine"


Window = int | Literal["config", "off"]
"""The drafter's window that a profile asks for: as the drafter's config says, none at all, or tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """A reference to a secret, never its value: ``env:NAME``, ``file:PATH`` or ``command:ARGV...``.

    Resolved on the console's machine only at launch, sent over stdin, never logged.
    """

    scheme: Literal["env", "file", "command"]
    target: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile after ``extends`` is resolved.

    ``options`` holds SGLang options by their long name without dashes in front and in the spelling of
    the newest release (``mem-fraction-static``); ``True`` means a bare flag, ``False`` means leave it out.
    ``extra`` is appended to the command as it is. Times are seconds.
    """

    name: str
    description: str = ""
    program: Program = Program.SGLANG
    target: str
    drafter: str | None = None
    algorithm: Algorithm = Algorithm.NONE
    window: Window = "config"
    budget: int | None = None
    topk: int | None = None
    block_size: int | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    ready_timeout_s: float = 1800.0
    stop_grace_s: float = 60.0
    origin: str = ""
    """File the profile was read from; empty when built in memory."""
    shipped: bool = False
    digest: str = ""
    """SHA-256 of the resolved content: two profiles with one digest launch the same thing."""
