"""Servers that fail, lie or say nothing, launched by the real command line over a real sshd."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs import hostile_server
from rigs.sshd import Sshd, free_port, poll_until

from .console_driver import MAIN, Console

pytestmark = pytest.mark.sshd

PROFILE = """
target = "some/model"
ready_timeout_s = 4
stop_grace_s = 3
[env]
HOSTILE = "{mode}"
"""
CONFIG = """
[hosts.rig]
address = "rig"
python = "{venv}"
[servers.one]
host = "rig"
port = {port}
profile = "silent"
[hosts.bare]
address = "rig"
python = "/no/such/venv"
[servers.lost]
host = "bare"
port = {other}
profile = "silent"
"""


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_server.install(tmp_path_factory.mktemp("hostile") / "venv")


@pytest.fixture
def console(sshd: Sshd, venv: Path) -> Iterator[Console]:
    port = 20000 + free_port() % 30000
    config = CONFIG.format(venv=venv, port=port, other=port + 1)
    made = Console(sshd, config, {mode: PROFILE.format(mode=mode) for mode in hostile_server.MODES})
    yield made
    made.run("stop", "one", "--yes")


def test_no_memory_at_the_start_is_said_in_words(console: Console) -> None:
    done = console.run("start", "one", "--profile", "out-of-memory")
    assert done.code == 5
    assert "GPU memory ran out: no room for 2.50 GiB" in done.err
    assert "nothing of it is left running" in done.err
    shown = console.run("status", "one")
    assert "GPU memory ran out" in shown.out
    assert "failed with exit code 1" in shown.out


@pytest.mark.parametrize(
    ("mode", "said"),
    [("garbage", "its port: no HTTP"), ("mute", "its port")],
)
def test_a_server_that_never_gets_ready_is_stopped_at_the_profiles_deadline(
    console: Console, mode: str, said: str
) -> None:
    done = console.run("start", "one", "--profile", mode, "--json")
    assert done.code == 5
    outcome = done.events[-1]
    assert "not ready within 4 s" in outcome["summary"]
    assert "it was stopped again" in outcome["summary"]
    assert said in " ".join(outcome["details"])
    assert "raise ready_timeout_s" in " ".join(outcome["details"])
    assert console.server("one")["state"] == "stopped"


def test_a_hostile_log_is_harmless_whole_and_found_after_its_folder_was_damaged(
    console: Console, sshd: Sshd
) -> None:
    start = console.spawn("start", "one", "--profile", "log", "--json")
    assert start.stdout is not None
    ident = ""
    for line in start.stdout:
        event = json.loads(line)
        if event.get("name") == "launch" and event["state"] == "done":
            ident = event["text"].split()[1].rstrip(",")
            break
    folder = sshd.remote_home / ".local/state/dflash-console/runs" / ident
    poll_until(lambda: b"last line" in (folder / "log").read_bytes()[-100:], what="the log")
    lines = [event["line"] for event in console.run("logs", "one", "--json").events]
    assert "[/markup] [bold]b[/bold]" in lines[0], "the log is whole, from its first line"
    assert lines[-1] == "last line"
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in "".join(lines))
    assert hostile_server.SECRET not in "".join(lines)
    assert max(map(len, lines)) < 20_000
    head = subprocess.run(
        ["/bin/sh", "-c", " ".join([*MAIN, "logs", "one", "| head -1"])],
        env=console.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert head.stderr == ""
    start.communicate(timeout=60)

    (folder / "run.json").write_text("{")
    lost = console.run("logs", "one")
    assert lost.code == 2
    assert f"--run {ident}" in lost.err
    found = console.run("logs", "one", "--run", ident)
    assert found.code == 0
    assert "last line" in found.out
    assert console.run("logs", "one", "--run", "../../../etc").code == 2


def test_following_ends_with_the_run_and_says_why(console: Console) -> None:
    start = console.spawn("start", "one", "--profile", "silent", "--json")
    console.wait_for("one", lambda s: s["state"] == "starting", what="the start")
    follow = console.run("logs", "one", "-f")
    assert follow.code == 0
    assert "is over: stopped" in follow.err
    start.communicate(timeout=60)


def test_an_interpreter_that_is_not_there_is_named_with_the_next_step(console: Console) -> None:
    plan = console.run("plan", "lost")
    assert plan.code == 2
    assert "no Python interpreter '/no/such/venv'" in plan.err
    assert "set python of host bare" in plan.err
    start = console.run("start", "lost")
    assert start.code == 4
    assert "no Python interpreter '/no/such/venv'" in start.err


def test_a_port_that_somebody_else_holds_keeps_a_server_from_starting(console: Console) -> None:
    port = console.server("one")["port"]
    with socket.create_server(("127.0.0.1", port)):
        done = console.run("start", "one")
        assert done.code == 5
        assert f"port {port}" in done.err
    assert console.server("one")["run_id"] is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_console_that_ends_while_it_launches_leaves_a_run_or_nothing(
    console: Console, number: signal.Signals
) -> None:
    start = console.spawn("start", "one", "--json")
    assert start.stdout is not None
    assert json.loads(start.stdout.readline())["name"] == "launch"
    os.kill(start.pid, number)
    _, err = start.communicate(timeout=60)
    if number is not signal.SIGKILL:
        assert start.returncode == 130
        assert "interrupted: a launch of one was under way" in err
    now = console.wait_for(
        "one", lambda s: s["message"] != "being launched" and s["state"] != "unknown", what="an end"
    )
    assert now["state"] in ("starting", "stopped")
    if now["state"] == "starting":
        assert console.run("stop", "one", "--yes").code == 0
    assert console.server("one")["state"] == "stopped"


def test_of_two_that_start_at_once_one_runs(console: Console) -> None:
    both = [console.spawn("start", "one", "--json") for _ in range(2)]
    ends = [json.loads(one.communicate(timeout=120)[0].splitlines()[-1]) for one in both]
    texts = [end.get("summary") or end["error"]["what"] for end in ends]
    assert sorted("not ready within" in text for text in texts) == [False, True], texts
    (loser,) = [text for text in texts if "not ready within" not in text]
    assert "runs already" in loser or "already starting" in loser or "port" in loser
