"""The one place that says what is allowed: every state against every action."""

from __future__ import annotations

import pytest

from dflash_backend.control.contract import Action
from dflash_backend.control.policy import Policy
from dflash_backend.core.inventory import HostConfig, Inventory, ServerConfig
from dflash_backend.core.samples import LinkStatus, RunStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import LinkState, ServerState

INVENTORY = Inventory(
    hosts={
        "gpu1": HostConfig(name="gpu1", address="gpu1"),
        "ro": HostConfig(name="ro", address="ro", read_only=True),
    },
    servers={
        "a": ServerConfig(name="a", host="gpu1", port=30000),
        "b": ServerConfig(name="b", host="ro", port=30000),
    },
)


def policy(
    state: ServerState | None,
    *,
    link: LinkState = LinkState.UP,
    busy: dict[str, Action] | None = None,
    read_only: bool = False,
) -> Policy:
    servers = (
        ()
        if state is None
        else tuple(
            ServerSnapshot(name=name, host=INVENTORY.servers[name].host, port=30000, state=state, at=1.0)
            for name in "ab"
        )
    )
    hosts = (LinkStatus(host="gpu1", state=link, since=0.0),)
    snapshot = Snapshot(at=1.0, servers=servers, hosts=hosts)
    return Policy(INVENTORY, lambda: snapshot, busy or {}, read_only=read_only)


ALLOWED = {
    ServerState.STOPPED: {Action.START, Action.RESTART, Action.APPLY},
    ServerState.FAILED: {Action.START, Action.RESTART, Action.APPLY},
    ServerState.STARTING: {Action.STOP, Action.RESTART, Action.APPLY},
    ServerState.READY: {Action.STOP, Action.RESTART, Action.APPLY, Action.BENCH},
    ServerState.DRAINING: {Action.STOP, Action.RESTART, Action.APPLY},
    ServerState.STOPPING: {Action.STOP},
    ServerState.FOREIGN: {Action.ADOPT, Action.BENCH},
    ServerState.UNREACHABLE: set(),
    ServerState.UNKNOWN: set(),
}
ON_SERVERS = (Action.START, Action.STOP, Action.RESTART, Action.APPLY, Action.ADOPT, Action.BENCH)


@pytest.mark.parametrize("state", list(ServerState))
@pytest.mark.parametrize("action", ON_SERVERS)
def test_every_state_against_every_action(state: ServerState, action: Action) -> None:
    decision = policy(state).decide(action, "a")
    assert decision.allowed is (action in ALLOWED[state]), decision.reason
    assert bool(decision.reason) is not decision.allowed


@pytest.mark.parametrize("action", list(Action))
def test_read_only_refuses_everything_that_changes_or_loads_a_server(action: Action) -> None:
    decision = policy(ServerState.READY, read_only=True).decide(action, "a", "gpu1")
    assert not decision.allowed
    assert "read-only" in decision.reason


def test_a_read_only_host_is_refused_by_name_and_others_are_not() -> None:
    assert "ro is read-only" in policy(ServerState.READY).decide(Action.STOP, "b").reason
    assert policy(ServerState.READY).decide(Action.STOP, "a").allowed


@pytest.mark.parametrize(
    "link", [state for state in LinkState if state not in (LinkState.UP, LinkState.CONNECTING)]
)
def test_a_host_without_a_connection_refuses_and_says_why(link: LinkState) -> None:
    decision = policy(None, link=link).decide(Action.START, "a")
    assert not decision.allowed
    assert "gpu1" in decision.reason


def test_one_action_at_a_time_on_a_server() -> None:
    busy = {"a": Action.APPLY}
    for action in ON_SERVERS:
        assert "in progress" in policy(ServerState.READY, busy=busy).decide(action, "a").reason


@pytest.mark.parametrize(("server", "host"), [("nope", None), (None, None)])
def test_unknown_names_are_refused(server: str | None, host: str | None) -> None:
    assert not policy(ServerState.READY).decide(Action.START, server, host).allowed
    assert not policy(ServerState.READY).decide(Action.PLUGIN, server, host).allowed


def test_a_host_key_may_be_trusted_while_there_is_no_connection() -> None:
    assert policy(None, link=LinkState.KEY_UNKNOWN).decide(Action.TRUST_KEY, host="gpu1").allowed
    assert not policy(None, link=LinkState.KEY_UNKNOWN).decide(Action.PLUGIN, host="gpu1").allowed


@pytest.mark.parametrize("state", [ServerState.STOPPED, ServerState.FAILED])
def test_what_outlived_a_run_can_be_stopped(state: ServerState) -> None:
    def decide(left: int) -> bool:
        run = RunStatus(run_id="r", server="a", folder="/r", manager="setsid", left=left)
        now = ServerSnapshot(name="a", host="gpu1", port=30000, state=state, at=1.0, run=run)
        links = (LinkStatus(host="gpu1", state=LinkState.UP, since=0.0),)
        snapshot = Snapshot(at=1.0, servers=(now,), hosts=links)
        seen = Policy(INVENTORY, lambda: snapshot, {})
        return seen.decide(Action.STOP, "a").allowed

    assert decide(2)
    assert not decide(0)
