"""Hosts and servers as configured by the user. Pure data, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """A machine reached by SSH.

    ``address`` is an alias of ``~/.ssh/config`` or ``[user@]host[:port]``. ``python`` is an interpreter or a
    venv folder on the host (``None``: ``python3``). ``env`` is added to everything launched there.
    """

    name: str
    address: str
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True
    read_only: bool = False
    identity_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One SGLang endpoint: ``port`` on ``host``, and the profile it is launched with by default."""

    name: str
    host: str
    port: int
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything the configuration file says. Order is the file's order; names are unique."""

    path: str = ""
    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    servers: Mapping[str, ServerConfig] = field(default_factory=dict)
    profile_dirs: tuple[str, ...] = ()
    read_only: bool = False
    ascii: bool = False
    theme: str | None = None
    keymap: Mapping[str, str] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    """Profiles on the keys 1-9 of the fleet screen."""
