"""Every state of a server, and what it takes to get there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.samples import LinkStatus, RunStatus, Stage
from dflash_backend.core.states import LinkState, ServerState, StageName
from dflash_backend.telemetry.derive import (
    BEING_LAUNCHED,
    HOST_SILENT_S,
    HTTP_SILENT_S,
    Facts,
    HttpAnswer,
    age,
    derive,
    exit_text,
)

NOW = 1_000_000.0


def link(
    state: LinkState = LinkState.UP, *, since: float = NOW - 100, message: str = "", seen: float | None = NOW
) -> LinkStatus:
    return LinkStatus(host="h", state=state, since=since, last_seen=seen, message=message)


def run(**changes: object) -> RunStatus:
    plain = RunStatus(
        run_id="r1",
        server="s",
        folder="/r1",
        manager="setsid",
        pid=10,
        pgid=10,
        alive=True,
        started_at=NOW - 30,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def dead(**changes: object) -> RunStatus:
    return run(**{"alive": False, "exit_code": 1, "exited_at": NOW - 20, **changes})


GOOD = HttpAnswer(asked=NOW - 1, answered=NOW - 1, ready=True, running=0)
BUSY = replace(GOOD, running=3)
OLD = HttpAnswer(asked=NOW - 1, answered=NOW - HTTP_SILENT_S - 5, ready=True, message="no answer within 3 s")
NOBODY = HttpAnswer(asked=NOW - 1, message="nothing listens on the port")
BASE = Facts(now=NOW, link=link(), host_at=NOW - 1, listening=False, http=NOBODY)

TABLE: list[tuple[str, Facts, ServerState, str]] = [
    # The host first.
    ("disabled", replace(BASE, link=link(LinkState.DISABLED), host_at=None), ServerState.UNKNOWN, "disabled"),
    (
        "first connection",
        replace(BASE, link=link(LinkState.CONNECTING, seen=None), host_at=None),
        ServerState.UNKNOWN,
        "connecting",
    ),
    (
        "connected just now",
        replace(BASE, link=link(since=NOW - 1), host_at=None),
        ServerState.UNKNOWN,
        "reading the host",
    ),
    (
        "connected, and nothing comes",
        replace(BASE, link=link(since=NOW - 60), host_at=None),
        ServerState.UNREACHABLE,
        "never seen",
    ),
    (
        "no python on the host",
        replace(BASE, host_at=None, host_problem="no Python interpreter 'python3' on the host"),
        ServerState.UNKNOWN,
        "no Python interpreter",
    ),
    (
        "never reached",
        replace(BASE, link=link(LinkState.LOST, message="connection refused", seen=None), host_at=None),
        ServerState.UNREACHABLE,
        "connection refused (never seen)",
    ),
    (
        "lost",
        replace(
            BASE,
            link=link(LinkState.LOST, message="connection lost"),
            host_at=NOW - 240,
            run=run(),
            http=GOOD,
        ),
        ServerState.UNREACHABLE,
        "connection lost (last seen 4 min ago)",
    ),
    (
        "frozen: the link seems up",
        replace(BASE, host_at=NOW - HOST_SILENT_S - 1, run=run(), http=OLD),
        ServerState.UNREACHABLE,
        "no answer from the host (last seen 9 s ago)",
    ),
    (
        "connecting again",
        replace(BASE, link=link(LinkState.CONNECTING, message="connecting"), host_at=NOW - 60),
        ServerState.UNREACHABLE,
        "last seen 60 s ago",
    ),
    (
        "key changed",
        replace(BASE, link=link(LinkState.KEY_CHANGED, message="the host key changed")),
        ServerState.UNREACHABLE,
        "the host key changed",
    ),
    (
        "key unknown",
        replace(BASE, link=link(LinkState.KEY_UNKNOWN, message="trust it first"), host_at=None),
        ServerState.UNREACHABLE,
        "trust it first (never seen)",
    ),
    ("auth failed", replace(BASE, link=link(LinkState.AUTH_FAILED)), ServerState.UNREACHABLE, "auth-failed"),
    # No run of ours.
    ("nothing there", BASE, ServerState.STOPPED, ""),
    ("foreign", replace(BASE, listening=True, listener=77, http=GOOD), ServerState.FOREIGN, "pid 77 answers"),
    (
        "foreign, unseen owner",
        replace(BASE, listening=True, http=GOOD),
        ServerState.FOREIGN,
        "cannot be seen",
    ),
    (
        "foreign, ports unknown",
        replace(BASE, listening=None, http=GOOD),
        ServerState.FOREIGN,
        "not started from here",
    ),
    (
        "foreign, still starting",
        replace(BASE, listening=True, http=replace(GOOD, ready=False, message="not serving yet (503)")),
        ServerState.FOREIGN,
        "",
    ),
    ("not asked yet", replace(BASE, listening=True, http=HttpAnswer()), ServerState.UNKNOWN, "asking it"),
    (
        "somebody else's port",
        replace(BASE, listening=True, listener=5, http=replace(NOBODY, message="no HTTP: bad line")),
        ServerState.STOPPED,
        "taken by pid 5: no HTTP: bad line",
    ),
    ("it just closed", replace(BASE, listening=False, http=GOOD), ServerState.STOPPED, ""),
    # A run that lives.
    ("launched", replace(BASE, run=run()), ServerState.STARTING, "starting for 30 s"),
    (
        "folder only",
        replace(BASE, run=run(alive=False, pid=None, note=BEING_LAUNCHED)),
        ServerState.STARTING,
        "being launched",
    ),
    (
        "port open, not serving",
        replace(BASE, run=run(), listening=True, http=replace(GOOD, ready=False)),
        ServerState.STARTING,
        "",
    ),
    (
        "seen for the first time with an open port",
        replace(BASE, run=run(), listening=True, http=HttpAnswer()),
        ServerState.UNKNOWN,
        "asking its port",
    ),
    ("ready", replace(BASE, run=run(), listening=True, http=GOOD), ServerState.READY, ""),
    ("ready, ports unknown", replace(BASE, run=run(), listening=None, http=GOOD), ServerState.READY, ""),
    (
        "ready with a note",
        replace(BASE, run=run(note="its supervisor is gone"), listening=True, http=GOOD),
        ServerState.READY,
        "supervisor",
    ),
    (
        "a long prefill",
        replace(BASE, run=run(), listening=True, was_ready=True, http=replace(GOOD, answered=NOW - 10)),
        ServerState.READY,
        "",
    ),
    (
        "hangs",
        replace(BASE, run=run(), listening=True, was_ready=True, http=OLD),
        ServerState.UNREACHABLE,
        "the process lives, its port has not answered for 20 s",
    ),
    (
        "port closed after ready",
        replace(BASE, run=run(), listening=False, was_ready=True, http=NOBODY),
        ServerState.UNREACHABLE,
        "nothing listens",
    ),
    (
        "an action drains",
        replace(BASE, run=run(), listening=True, http=BUSY, draining=True),
        ServerState.DRAINING,
        "3 requests left",
    ),
    (
        "stop asked, requests left",
        replace(BASE, run=run(stop_requested_at=NOW - 5), listening=True, http=BUSY),
        ServerState.DRAINING,
        "3 requests left",
    ),
    (
        "stop asked, none left",
        replace(BASE, run=run(stop_requested_at=NOW - 5), listening=True, http=GOOD),
        ServerState.STOPPING,
        "5 s ago",
    ),
    (
        "stop asked, port closed",
        replace(BASE, run=run(stop_requested_at=NOW - 5), was_ready=True),
        ServerState.STOPPING,
        "5 s ago",
    ),
    # A run that is over.
    (
        "failed",
        replace(BASE, run=dead(), why=("out of memory", "torch.OutOfMemoryError: …")),
        ServerState.FAILED,
        "exit 1 20 s ago: out of memory; torch.OutOfMemoryError",
    ),
    ("killed", replace(BASE, run=dead(exit_code=137)), ServerState.FAILED, "exit 137 (SIGKILL)"),
    (
        "gone without a code",
        replace(BASE, run=dead(exit_code=None, exited_at=None, note="the host was rebooted since")),
        ServerState.FAILED,
        "exit code unknown: the host was rebooted since",
    ),
    (
        "killed a moment ago, the port still remembered",
        replace(BASE, run=dead(exit_code=None, exited_at=None), listening=False, http=GOOD),
        ServerState.FAILED,
        "exit code unknown",
    ),
    (
        "stopped by us",
        replace(BASE, run=dead(exit_code=143, stop_requested_at=NOW - 30)),
        ServerState.STOPPED,
        "stopped 20 s ago (exit 143 (SIGTERM))",
    ),
    (
        "ended by itself",
        replace(BASE, run=dead(exit_code=0)),
        ServerState.STOPPED,
        "ended by itself 20 s ago (exit 0)",
    ),
    (
        "stopped, now somebody else",
        replace(BASE, run=dead(exit_code=0), listening=True, listener=9, http=GOOD),
        ServerState.FOREIGN,
        "pid 9 answers",
    ),
    (
        "failed, now somebody else",
        replace(BASE, run=dead(), listening=True, listener=9, http=GOOD),
        ServerState.FOREIGN,
        "our run ended (exit 1 20 s ago); pid 9 answers",
    ),
]


@pytest.mark.parametrize(
    ("facts", "state", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_states(facts: Facts, state: ServerState, text: str) -> None:
    derived = derive(facts)
    assert derived.state is state, derived.message
    assert text in derived.message
    assert (derived.stage is not None) == (state is ServerState.STARTING)


def test_every_state_of_the_design_is_in_the_table() -> None:
    assert {row[2] for row in TABLE} == set(ServerState)


def test_the_stage_comes_from_the_log_and_ready_needs_an_answer() -> None:
    graphs = Stage(name=StageName.GRAPHS, done=14, total=24)
    assert derive(replace(BASE, run=run(), stage=graphs)).stage == graphs
    said = Stage(name=StageName.READY)
    derived = derive(replace(BASE, run=run(), stage=said, listening=True, http=replace(GOOD, ready=False)))
    assert derived.state is ServerState.STARTING
    assert derived.stage == Stage(name=StageName.WARM_UP)


times = st.none() | st.floats(NOW - 1e5, NOW + 10)
facts_strategy = st.builds(
    Facts,
    now=st.just(NOW),
    link=st.none()
    | st.builds(link, state=st.sampled_from(LinkState), since=st.floats(NOW - 1e4, NOW), seen=times),
    host_at=times,
    host_problem=st.sampled_from(["", "no Python"]),
    run=st.none()
    | st.builds(
        run,
        alive=st.booleans(),
        exit_code=st.none() | st.integers(-64, 300),
        exited_at=times,
        stop_requested_at=times,
        pid=st.none() | st.just(10),
        note=st.sampled_from(["", BEING_LAUNCHED, "odd"]),
    ),
    listening=st.none() | st.booleans(),
    http=st.builds(
        HttpAnswer, asked=times, answered=times, ready=st.booleans(), running=st.none() | st.integers(0, 9)
    ),
    was_ready=st.booleans(),
    draining=st.booleans(),
)


@given(facts_strategy)
def test_no_host_no_claim_and_no_run_no_ownership(facts: Facts) -> None:
    derived = derive(facts)
    fresh = facts.host_at is not None and NOW - facts.host_at <= HOST_SILENT_S
    if not fresh:
        # A host that is not seen now never yields a statement about its processes.
        assert derived.state in (ServerState.UNKNOWN, ServerState.UNREACHABLE)
        assert derived.message
    if derived.state in (ServerState.READY, ServerState.STARTING, ServerState.DRAINING, ServerState.STOPPING):
        assert facts.run is not None
    if derived.state is ServerState.READY:
        assert facts.run is not None
        assert facts.run.alive
    if derived.state is ServerState.FAILED:
        assert facts.run is not None
        assert not facts.run.alive


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit 0"),
        (1, "exit 1"),
        (137, "exit 137 (SIGKILL)"),
        (143, "exit 143 (SIGTERM)"),
        (-9, "exit -9 (SIGKILL)"),
        (255, "exit 255"),
        (159, "exit 159 (SIGSYS)"),
        (None, "exit code unknown"),
    ],
)
def test_exit_codes_in_words(code: int | None, text: str) -> None:
    assert exit_text(code) == text


def test_ages_are_short_and_never_negative() -> None:
    assert [age(s) for s in (-5, 0.4, 119, 240, 7300, 200_000)] == [
        "0 s",
        "0 s",
        "119 s",
        "4 min",
        "2 h",
        "2 d",
    ]
