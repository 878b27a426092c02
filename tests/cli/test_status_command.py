"""What ``status`` says beside its table, and when it knows enough to say it."""

from __future__ import annotations

import io

import pytest

from dflash_backend.core.samples import LinkStatus, RunStatus, ServerSnapshot, Snapshot
from dflash_backend.core.states import LinkState, ServerState
from dflash_backend.telemetry.derive import NOT_YET
from dflash_console.cli.command import Context
from dflash_console.cli.commands import status
from dflash_console.cli.live import _known
from dflash_console.cli.output import Output


def lines(*servers: ServerSnapshot) -> list[str]:
    out = io.StringIO()
    context = Context(config=None, read_only=False, output=Output(stdout=out, stderr=io.StringIO()))
    status.show(Snapshot(at=1.0, servers=servers), context)
    return out.getvalue().splitlines()[1 + len(servers) :]


def server(name: str, state: ServerState, message: str = "", **more: object) -> ServerSnapshot:
    return ServerSnapshot(name=name, host="h", port=1, state=state, message=message, **more)  # type: ignore[arg-type]


def run(**more: object) -> RunStatus:
    return RunStatus(run_id="r", server="a", folder="/x", manager="setsid", **more)  # type: ignore[arg-type]


def test_what_is_said_of_every_server_of_a_host_is_said_once() -> None:
    many = [server(f"s{i}", ServerState.UNREACHABLE, "no answer") for i in range(200)]
    assert lines(*many, server("other", ServerState.UNREACHABLE, "no login")) == [
        "h, 200 servers: no answer",
        "other: no login",
    ]


def test_a_failed_run_is_explained_and_what_it_left_is_told() -> None:
    said = lines(server("a", ServerState.FAILED, "exit 137", run=run(exit_code=137, left=2, note="odd")))
    assert said[0] == "a: exit 137"
    assert "out of memory" in said[1]
    assert said[2] == "a: odd"
    assert said[3] == "a: 2 processes of it are left: dflash-console stop a removes them"


def test_a_quiet_server_has_no_remark() -> None:
    assert (
        lines(server("a", ServerState.READY, run=run(alive=True)), server("b", ServerState.STOPPED, "x"))
        == []
    )


@pytest.mark.parametrize(
    ("message", "known"), [*((text, False) for text in NOT_YET), ("no Python interpreter", True)]
)
def test_a_host_that_cannot_be_watched_is_not_waited_for(message: str, known: bool) -> None:
    links = (LinkStatus(host="h", state=LinkState.UP, since=0.0),)
    snapshot = Snapshot(at=1.0, servers=(server("a", ServerState.UNKNOWN, message),), hosts=links)
    assert _known(snapshot) == known
