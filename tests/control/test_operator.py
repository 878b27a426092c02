"""Carrying out plans when the host, the clock or another console does something at the wrong moment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from scripted_host import ScriptedHost

from dflash_backend.control.action_log import who
from dflash_backend.control.contract import Action, Outcome, Plan, Step
from dflash_backend.core.errors import FailedError, RefusedError
from dflash_backend.core.profile import Profile, Program
from dflash_backend.core.states import ServerState
from rigs.run_host import until


@pytest.fixture
def host(tmp_path: Path) -> ScriptedHost:
    return ScriptedHost(tmp_path)


async def carry_out(host: ScriptedHost, plan: Plan, drain_s: float = 0.0) -> tuple[list[Step], Outcome]:
    items = [item async for item in host.operator.execute(plan, drain_s=drain_s)]
    assert isinstance(items[-1], Outcome)
    return [item for item in items if isinstance(item, Step)], items[-1]


@pytest.mark.parametrize("action", [Action.APPLY, Action.RESTART, Action.STOP])
async def test_a_run_that_another_console_started_meanwhile_is_not_ended(
    host: ScriptedHost, action: Action
) -> None:
    host.show(ServerState.READY, host.run("planned"))
    plan = await host.operator.plan(action, "a", "p")
    assert plan.from_run == "planned"
    host.runs.clear()
    host.run("theirs", by="her@there")
    _, outcome = await carry_out(host, plan)
    assert (outcome.ok, outcome.exit_code) == (False, 4)
    assert "theirs" in outcome.summary
    assert "her@there" in outcome.summary
    assert host.done == []


async def test_nothing_ran_when_it_was_planned_and_something_does_now(host: ScriptedHost) -> None:
    plan = await host.operator.plan(Action.APPLY, "a")
    host.run("theirs")
    _, outcome = await carry_out(host, plan)
    assert outcome.exit_code == 4
    assert host.done == []


async def test_what_is_left_of_a_dead_run_is_removed_all_the_same(host: ScriptedHost) -> None:
    plan = await host.operator.plan(Action.APPLY, "a")
    dead = host.run("dead", alive=False)
    object.__setattr__(dead, "left", 2)
    _, outcome = await carry_out(host, plan)
    assert outcome.ok
    assert host.done == ["stop dead", "launch"]


async def test_draining_is_shown_and_ends_when_no_request_is_left(host: ScriptedHost) -> None:
    run = host.run("one")
    host.show(ServerState.READY, run, running=2)
    plan = await host.operator.plan(Action.STOP, "a")
    carrying = asyncio.create_task(carry_out(host, plan, drain_s=60.0))
    await until(lambda: host.draining == [True])
    # A server deep in a prefill says nothing for a while: unknown is not none.
    host.show(ServerState.READY, run, running=None)
    for _ in range(20):
        await asyncio.sleep(0)
    assert host.done == []
    host.show(ServerState.READY, run, running=0)
    steps, outcome = await carrying
    assert outcome.ok
    assert host.draining == [True, False]
    assert [(s.name, s.state) for s in steps][:2] == [("drain", "running"), ("drain", "done")]
    assert host.done == ["stop one"]


async def test_an_interrupted_drain_is_over(host: ScriptedHost) -> None:
    host.show(ServerState.READY, host.run("one"), running=2)
    plan = await host.operator.plan(Action.STOP, "a")
    carrying = asyncio.create_task(carry_out(host, plan, drain_s=60.0))
    await until(lambda: host.draining == [True])
    carrying.cancel()
    await asyncio.wait({carrying})
    assert host.draining == [True, False]
    assert host.done == []
    entries = [json.loads(line) for line in host.log.path.read_text().splitlines()]
    assert [entry["phase"] for entry in entries] == ["begin", "end"]
    assert entries[1]["details"]["summary"] == "interrupted"
    assert host.operator.decide(Action.STOP, "a").allowed, "it is not busy any more"


async def test_a_clock_that_is_set_ends_no_start(host: ScriptedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = await host.operator.plan(Action.START, "a")

    async def launch(spec: object) -> object:
        run = host.run("new")
        host.show(ServerState.STARTING, run)
        host.clock += 86400.0
        asyncio.get_running_loop().call_later(0.05, host.show, ServerState.READY, run)
        return run

    monkeypatch.setattr(host, "launch", launch)
    _, outcome = await carry_out(host, plan)
    assert outcome.ok, outcome.summary
    assert host.done == []


async def test_who_adopts_is_kept(host: ScriptedHost) -> None:
    host.show(ServerState.FOREIGN)
    _, outcome = await carry_out(host, await host.operator.plan(Action.ADOPT, "a"))
    assert outcome.ok
    assert host.done == [f"adopt by {who()}"]


async def test_no_action_runs_unlogged(host: ScriptedHost) -> None:
    host.log.path.mkdir()
    plan = await host.operator.plan(Action.START, "a")
    with pytest.raises(FailedError, match="action log"):
        await carry_out(host, plan)
    assert host.done == []
    assert host.operator.decide(Action.START, "a").allowed


async def test_an_unknown_state_is_refused_with_its_reason(host: ScriptedHost) -> None:
    object.__setattr__(host.now, "message", "no Python interpreter")
    object.__setattr__(host.now, "state", ServerState.UNKNOWN)
    decision = host.operator.decide(Action.START, "a")
    assert "no Python interpreter" in decision.reason
    with pytest.raises(RefusedError, match="no Python interpreter"):
        await carry_out(host, await host.operator.plan(Action.START, "a"))


@pytest.mark.parametrize(
    ("port", "version", "env", "warned"),
    [
        (55536, "0.5.11", {}, True),
        (65000, "0.5.15.post1", {}, True),
        (55535, "0.5.11", {}, False),
        (65000, "0.5.16", {}, False),
        (65000, "0.5.11", {"SGLANG_GRPC_PORT": "4000"}, False),
    ],
)
async def test_a_port_from_which_sglang_derives_none_is_marked(
    tmp_path: Path, port: int, version: str, env: dict[str, str], warned: bool
) -> None:
    host = ScriptedHost(tmp_path, port=port, version=version)
    host.profile = Profile(name="p", target="t", program=Program.SGLANG, env=env)
    plan = await host.operator.plan(Action.START, "a")
    found = [w for w in plan.warnings if f"port {port}" in w.text]
    assert bool(found) == warned
    assert all(w.dangerous for w in found)


async def test_a_server_that_serves_and_does_not_tell_its_settings_is_not_given_up(
    host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_backend.control.operator.READ_BACK_S", 0.0)
    plan = await host.operator.plan(Action.START, "a")

    async def launch(spec: object) -> object:
        run = host.run("new")
        host.show(ServerState.READY, run)
        object.__setattr__(host.now, "settings", None)
        return run

    monkeypatch.setattr(host, "launch", launch)
    steps, outcome = await carry_out(host, plan)
    assert outcome.ok
    assert "could not be read back" in outcome.summary
    assert (steps[-1].name, steps[-1].state) == ("read back", "failed")
    assert host.done == []
