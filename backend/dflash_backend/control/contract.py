"""Actions: planned before they run, allowed or refused in one place, told step by step."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dflash_backend.core.profile import Profile


class Action(enum.StrEnum):
    """Everything that changes something."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    APPLY = "apply"
    ADOPT = "adopt"
    BENCH = "bench"
    TRUST_KEY = "trust-key"
    FORGET_KEY = "forget-key"
    PLUGIN = "plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an action is allowed now; ``reason`` says why not and is shown as it is."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that a plan changes. None: not set."""

    name: str
    before: str | None
    after: str | None
    how: Literal["restart", "live"] = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """A warning of a plan. ``dangerous`` ones need a confirmation of their own."""

    text: str
    dangerous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an action would do, exactly. Making a plan changes nothing."""

    server: str
    host: str
    action: Action
    profile: Profile
    from_profile: str | None
    from_run: str | None = None
    """The run that the action ends; another one is never ended in its place. None: nothing ran."""
    changes: tuple[Change, ...]
    argv: tuple[str, ...]
    command: str
    """``argv`` with environment, quoted for a shell; secrets appear as their references."""
    live: bool
    """True when everything can change without a restart."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment that is safe to show; secrets are resolved at launch."""
    notes: tuple[str, ...] = ()
    """Choices that were made, explained: an option spelled otherwise in this release."""
    warnings: tuple[PlanWarning, ...] = ()
    refusals: tuple[str, ...] = ()
    """Why it cannot run; empty when it can."""
    memory_forecast: tuple[str, ...] = ()
    expected_s: float | None = None
    """How long it should take, from earlier starts; None when there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Progress of an action: drain, stop, memory free, launch, weights, graphs, probe, read back."""

    name: str
    state: Literal["running", "done", "failed", "skipped"]
    text: str = ""
    at: float = 0.0
    progress: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """One line of asked against granted, read back from the running server."""

    name: str
    asked: str
    granted: str | None
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of an action; the last item of its stream."""

    ok: bool
    summary: str
    granted: tuple[Granted, ...] = ()
    exit_code: int = 0
    details: Sequence[str] = ()


class Operator(Protocol):
    """Plans and runs actions. Used by keys, palette and command line alike."""

    def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
        """The one place that says whether an action is allowed now, and why not. No I/O."""
        ...

    async def plan(self, action: Action, server: str, profile: str | None = None) -> Plan:
        """What the action would do. Raises UsageError, ConfigError, UnreachableError."""
        ...

    def execute(self, plan: Plan) -> AsyncIterator[Step | Outcome]:
        """Runs a plan; the last item is an Outcome. Cancelling it ends in a state that is said."""
        ...
