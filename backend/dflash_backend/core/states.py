"""Server states, start-up stages and connection states: the words of the design, in one place."""

from __future__ import annotations

import enum


class ServerState(enum.StrEnum):
    """State of a server as shown everywhere."""

    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"
    FOREIGN = "foreign"


class StageName(enum.StrEnum):
    """Start-up stages of a server, in order."""

    LAUNCH = "launch"
    WEIGHTS = "weights"
    KV_POOL = "kv-pool"
    DRAFT_WEIGHTS = "draft-weights"
    GRAPHS = "graphs"
    WARM_UP = "warm-up"
    READY = "ready"


class LinkState(enum.StrEnum):
    """State of the SSH connection to one host.

    ``AUTH_FAILED``, ``KEY_UNKNOWN``, ``KEY_CHANGED`` and ``CONFIG_ERROR`` need a human: no more retries.
    ``LOST`` and ``CONNECTING`` go on by themselves.
    """

    DISABLED = "disabled"
    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    AUTH_FAILED = "auth-failed"
    KEY_UNKNOWN = "key-unknown"
    KEY_CHANGED = "key-changed"
    CONFIG_ERROR = "config-error"

    @property
    def needs_human(self) -> bool:
        """True when retrying cannot help."""
        return self in (
            LinkState.AUTH_FAILED,
            LinkState.KEY_UNKNOWN,
            LinkState.KEY_CHANGED,
            LinkState.CONFIG_ERROR,
        )
