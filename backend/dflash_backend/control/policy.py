"""The one place that decides whether an action is allowed now, and why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dflash_backend.control.contract import Action, Decision
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.samples import LinkStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import LinkState, ServerState

_NEEDS_SERVER = frozenset(
    {Action.START, Action.STOP, Action.RESTART, Action.APPLY, Action.ADOPT, Action.BENCH}
)
_KEY_ACTIONS = frozenset({Action.TRUST_KEY, Action.FORGET_KEY})
_RUNNING = frozenset({ServerState.STARTING, ServerState.READY, ServerState.DRAINING})
ALLOWED = Decision(allowed=True)


class Policy:
    """Rules over the inventory and the newest snapshot; no I/O, so that every key press may ask.

    ``busy`` names, per server, the action that this console is carrying out right now.
    """

    def __init__(
        self,
        inventory: Inventory,
        snapshot: Callable[[], Snapshot],
        busy: Mapping[str, Action],
        *,
        read_only: bool = False,
    ) -> None:
        self._inventory = inventory
        self._snapshot = snapshot
        self._busy = busy
        self._read_only = read_only or inventory.read_only

    @property
    def read_only(self) -> bool:
        """True when nothing may be changed from this console."""
        return self._read_only

    def decide(self, action: Action, server: str | None = None, host: str | None = None) -> Decision:
        """Whether ``action`` is allowed now. The reason is a sentence for people, shown as it is."""
        if self._read_only:
            return _no("read-only: started with --read-only, or read_only is set in the configuration")
        if action in _NEEDS_SERVER:
            return self._decide_server(action, server)
        return self._decide_host(action, host)

    def _decide_host(self, action: Action, host: str | None) -> Decision:
        if host is None or host not in self._inventory.hosts:
            return _no(f"no host named {host!r} in the configuration" if host else "choose a host first")
        if self._inventory.hosts[host].read_only and action not in _KEY_ACTIONS:
            return _no(f"host {host} is read-only in the configuration")
        return ALLOWED if action in _KEY_ACTIONS else self._link(host)

    def _decide_server(self, action: Action, server: str | None) -> Decision:
        config = self._inventory.servers.get(server or "")
        if config is None or server is None:
            return _no(
                f"no server named {server!r} in the configuration" if server else "choose a server first"
            )
        if self._inventory.hosts[config.host].read_only:
            return _no(f"host {config.host} is read-only in the configuration")
        if server in self._busy and action is not Action.BENCH:
            return _no(f"{self._busy[server]} of {server} is in progress")
        if server in self._busy:
            return _no(f"{self._busy[server]} of {server} is in progress: figures would not be clean")
        link = self._link(config.host)
        if not link.allowed:
            return link
        now = self._snapshot().server(server)
        return ALLOWED if now is None else _by_state(action, now)

    def _link(self, host: str) -> Decision:
        status = next((s for s in self._snapshot().hosts if s.host == host), None)
        if status is None or status.state in (LinkState.UP, LinkState.CONNECTING):
            return ALLOWED
        return _no(_link_reason(status))


def _no(reason: str) -> Decision:
    return Decision(allowed=False, reason=reason)


def _link_reason(status: LinkStatus) -> str:
    words = {
        LinkState.DISABLED: "is disabled in the configuration",
        LinkState.LOST: "does not answer over SSH; nothing can be changed there now",
        LinkState.AUTH_FAILED: "refuses our login",
        LinkState.KEY_UNKNOWN: "shows a host key that is not trusted yet (hosts trust)",
        LinkState.KEY_CHANGED: "shows another host key than before: refused until you forget the old one",
        LinkState.CONFIG_ERROR: "has an error in the SSH configuration",
    }
    return f"host {status.host} {words.get(status.state, status.state)}"


def _by_state(action: Action, now: ServerSnapshot) -> Decision:
    state = now.state
    if state in (ServerState.UNREACHABLE, ServerState.UNKNOWN) and now.at is not None:
        why = f" ({now.message})" if now.message else ""
        return _no(f"{now.name} is {state}{why}: its state has to be known first")
    match action:
        case Action.START if state in _RUNNING:
            return _no(f"{now.name} is already {state}; use apply or restart")
        case Action.START | Action.APPLY | Action.RESTART if state is ServerState.FOREIGN:
            return _no(f"port {now.port} is held by a server that this console did not start; adopt it first")
        case Action.START | Action.APPLY | Action.RESTART if state is ServerState.STOPPING:
            return _no(f"{now.name} is still stopping")
        case Action.STOP if state is ServerState.FOREIGN:
            return _no(
                f"{now.name} was not started by this console: it is never stopped from here; adopt it first"
            )
        case Action.STOP if state in (ServerState.STOPPED, ServerState.FAILED) and not _outlived(now):
            return _no(f"{now.name} is not running")
        case Action.ADOPT if state is not ServerState.FOREIGN:
            return _no(f"{now.name} is {state}: only a foreign server can be adopted")
        case Action.BENCH if state not in (ServerState.READY, ServerState.FOREIGN):
            return _no(f"{now.name} is {state}: a benchmark needs a ready server")
        case _:
            return ALLOWED


def _outlived(now: ServerSnapshot) -> bool:
    """True when processes of a run that is over are left: a stop removes them."""
    return now.run is not None and now.run.left > 0
