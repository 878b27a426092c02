"""What the builder of a launch command returns, and what it is told about the host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_backend.core.errors import ConfigError, ConsoleError, RefusedError
from dflash_backend.core.profile import SecretRef


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAbilities:
    """What is known of the host beyond SGLang's version; everything may be unknown (None or empty).

    ``options`` are the long option names, without dashes, that the host's own ``--help`` lists: a tree
    patched by hand or a plugin may add some. ``plugin_features`` are what an installed dflash plugin reports
    ("windows"). ``compute_capability`` is the GPU's, (12, 0) for an RTX PRO 6000.
    """

    options: frozenset[str] | None = None
    plugin_features: frozenset[str] = frozenset()
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWarning:
    """Something the user should know before launching. ``dangerous`` needs a confirmation of its own."""

    text: str
    dangerous: bool = False
    topic: str = ""
    """``window``: known of the release alone; an audit of the host itself says it better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a command cannot be launched: the profile is wrong, or the release or the host cannot do it."""

    text: str
    next_step: str = ""
    kind: Literal["config", "refused"] = "refused"
    about: tuple[str, ...] = ()
    """The profile's key that it is about, as ("options", "page-size")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCommand:
    """A launch command. ``env`` is safe to show; ``secret_env`` holds references, resolved only at launch.

    ``notes`` explain choices ("spelled --cuda-graph-max-bs in this release").
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, SecretRef] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[CommandWarning, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def shell(self) -> str:
        """The command quoted for a POSIX shell, with its environment; secrets appear as their references."""
        assigned = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        assigned += [f"{name}='<{reference}>'" for name, reference in self.secret_env.items()]
        return " ".join([*assigned, shlex.join(self.argv)])

    def error(self) -> ConsoleError | None:
        """The refusals as one error, or None: ConfigError when the profile itself is wrong."""
        if not self.refusals:
            return None
        kind = ConfigError if any(r.kind == "config" for r in self.refusals) else RefusedError
        steps = dict.fromkeys(r.next_step for r in self.refusals if r.next_step)
        return kind("; ".join(r.text for r in self.refusals), next_step="; ".join(steps))


@dataclass(slots=True)
class Draft:
    """A command while it is being built."""

    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[CommandWarning] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def add(self, option: str, value: object = None) -> None:
        """Appends ``--option`` and, unless None, its value."""
        self.words.append(f"--{option}")
        if value is not None:
            self.words.append(str(value))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str, *, dangerous: bool = False, topic: str = "") -> None:
        self.warnings.append(CommandWarning(text=text, dangerous=dangerous, topic=topic))

    def refuse(self, text: str, next_step: str = "", *, about: tuple[str, ...] = ()) -> None:
        """The release or the host cannot do it."""
        self.refusals.append(Refusal(text=text, next_step=next_step, about=about))

    def reject(self, text: str, next_step: str = "", *, about: tuple[str, ...] = ()) -> None:
        """The profile itself is wrong."""
        self.refusals.append(Refusal(text=text, next_step=next_step, kind="config", about=about))
