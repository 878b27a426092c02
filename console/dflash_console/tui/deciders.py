"""Whether an action can be asked for now, and why not: the console's side of the one decision.

What changes something is decided by the backend (``Operator.decide``); here stands only what the backend
cannot know: what is selected, and what this console was built with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dflash_backend.control.contract import Action, Decision
from dflash_backend.core.samples import LinkStatus, ServerSnapshot
from dflash_backend.core.states import LinkState, ServerState
from dflash_console.tui.services import Services

ALLOWED: Final = Decision(allowed=True)


def refused(reason: str) -> Decision:
    """A decision with the reason that is shown."""
    return Decision(allowed=False, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an action would work on, as the screen in front sees it."""

    services: Services
    screen: str
    server: ServerSnapshot | None = None
    host: LinkStatus | None = None
    busy: str = ""
    """What is in progress on the server; empty when nothing is."""
    benching: bool = False
    """True while this console runs a benchmark."""

    def ask(self, action: Action) -> Decision:
        """The backend's decision; what is in progress on this console is part of the answer."""
        if self.busy:
            return refused(f"{self.busy} is in progress on this server")
        return self.services.operator.decide(
            action,
            server=self.server.name if self.server else None,
            host=self.host.host if self.host else None,
        )


Decide = Callable[[Context], Decision]


def on_server(context: Context) -> Decision:
    """A server has to be selected."""
    return ALLOWED if context.server else refused("no server is selected")


def with_server(action: Action) -> Decide:
    """A server has to be selected, and the backend has to allow the action."""

    def decide(context: Context) -> Decision:
        return context.ask(action) if context.server else refused("no server is selected")

    return decide


def runs_now(server: ServerSnapshot) -> bool:
    """True when ``s`` means stop: something of this server may be running."""
    return server.state in (
        ServerState.STARTING,
        ServerState.READY,
        ServerState.DRAINING,
        ServerState.STOPPING,
        ServerState.FOREIGN,
    )


def start_stop(context: Context) -> Decision:
    """Start or stop, whichever the server's state means."""
    if context.server is None:
        return refused("no server is selected")
    return context.ask(Action.STOP if runs_now(context.server) else Action.START)


def start_stop_title(context: Context) -> str:
    """Says which of the two it is."""
    if context.server is None:
        return "start/stop"
    return "stop" if runs_now(context.server) else "start"


def adopt(context: Context) -> Decision:
    """Only a foreign server can be adopted."""
    if context.server is None:
        return refused("no server is selected")
    if context.server.state is not ServerState.FOREIGN:
        return refused("only a foreign server, one that answers but was not started here, can be adopted")
    return context.ask(Action.ADOPT)


def audit(context: Context) -> Decision:
    """There has to be something that audits."""
    if context.services.audit is None:
        return refused("this console has no window audit to ask")
    return on_server(context)


def measure(context: Context) -> Decision:
    """An audit to add to, a server, and the backend's leave to send requests."""
    decision = audit(context)
    return context.ask(Action.BENCH) if decision.allowed else decision


def bench(context: Context) -> Decision:
    """There has to be a benchmark runner."""
    if context.services.bench is None:
        return refused("this console has no benchmark runner")
    return ALLOWED


def bench_run(context: Context) -> Decision:
    """A runner, a server, and the backend's leave."""
    if context.services.bench is None:
        return refused("this console has no benchmark runner")
    return with_server(Action.BENCH)(context)


def cancel(context: Context) -> Decision:
    """There has to be something in progress."""
    return ALLOWED if context.busy else refused("nothing is in progress")


def bench_stop(context: Context) -> Decision:
    """A benchmark has to run."""
    return ALLOWED if context.benching else refused("no benchmark is running")


def host_care(context: Context) -> Decision:
    """A host has to be selected, and hosts have to be changeable from here."""
    if context.services.hosts is None:
        return refused("hosts cannot be changed from here")
    return ALLOWED if context.host else refused("no host is selected")


def retry(context: Context) -> Decision:
    """Only a host that is not connected can be tried again."""
    decision = host_care(context)
    if not decision.allowed or context.host is None:
        return decision
    if context.host.state is LinkState.UP:
        return refused("the host is connected")
    if context.host.state is LinkState.DISABLED:
        return refused("the host is disabled in the configuration")
    return ALLOWED


def trust(context: Context) -> Decision:
    """Only an unknown key can be trusted; a changed one never over the old."""
    decision = host_care(context)
    if not decision.allowed or context.host is None:
        return decision
    if context.host.state is LinkState.KEY_CHANGED:
        return refused("a changed key is never trusted over the old one: forget the old key first")
    if context.host.state is not LinkState.KEY_UNKNOWN:
        return refused("the key of this host is not in question")
    return context.ask(Action.TRUST_KEY)


def forget(context: Context) -> Decision:
    """The backend decides."""
    decision = host_care(context)
    return context.ask(Action.FORGET_KEY) if decision.allowed else decision
