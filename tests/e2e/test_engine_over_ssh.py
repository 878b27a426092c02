"""The command line against the reference engine behind a real sshd: what the exit codes and words promise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.sshd import Sshd, free_port

from .console_driver import Console

CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"

[servers.one]
host = "rig"
port = {port}
profile = "ref-chain"
"""
BROKEN = """
extends = "ref-ar"
description = "a target that is not there"
target = "/no/such/model"
"""
NEVER = """
extends = "ref-ar"
description = "never ready in time"
ready_timeout_s = 1
[options]
context-length = 8192
"""
JOB = """
concurrency = [1, 2]
output_tokens = 16
requests = 3
warmup_requests = 1
[prompts]
inline = ["def f(x):\\n", "import os\\n", "class A:\\n"]
"""


@pytest.fixture
def console(sshd: Sshd) -> Iterator[Console]:
    config = CONFIG.format(python=sys.executable, port=free_port())
    made = Console(sshd, config, {"broken": BROKEN, "never": NEVER})
    yield made
    made.run("stop", "one", "--yes")


pytestmark = pytest.mark.sshd


def test_start_switch_bench_and_stop(console: Console, tmp_path: Path) -> None:
    started = console.run("start", "one", "--json")
    assert started.code == 0, started.out + started.err
    assert [event["event"] for event in started.events][-1] == "outcome"
    now = console.server("one")
    assert (now["state"], now["algorithm"], now["budget"]) == ("ready", "DFLASH", None)

    again = console.run("start", "one")
    assert again.code == 4
    assert "already ready" in again.err

    live = console.run("apply", "one", "--profile", "ref-ddtree16", "--live-only", "--yes")
    assert live.code == 4
    assert console.server("one")["run_id"] == now["run_id"], "nothing was changed"

    applied = console.run("apply", "one", "--profile", "ref-ddtree16", "--yes", "--json")
    assert applied.code == 0, applied.out + applied.err
    rows = {row["name"]: (row["asked"], row["granted"], row["ok"]) for row in applied.events[-1]["granted"]}
    assert rows["algorithm"] == ("DDTREE", "DDTREE", True)
    assert rows["budget"] == ("16", "16", True)
    switched = console.server("one")
    assert (switched["algorithm"], switched["budget"]) == ("DDTREE", 16)
    assert switched["run_id"] != now["run_id"]

    (tmp_path / "job.toml").write_text(JOB)
    bench = console.run("bench", "run", str(tmp_path / "job.toml"), "--json")
    assert bench.code in (0, 1), bench.out + bench.err
    kinds = [event["event"] for event in bench.events]
    assert kinds == ["started", "cell", "cell", "summary"]
    cells = [event for event in bench.events if event["event"] == "cell"]
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    for cell in cells:
        assert cell["failed"] == 0
        assert cell["output_tok_s"] > 0
        assert cell["accept_length"] > 1
        assert cell["ttft_ms"]["p50"] > 0
    run_id = bench.events[0]["run"]
    assert run_id in console.run("bench", "list").out
    shown = console.run("bench", "show", run_id)
    assert "TTFT" in shown.out
    assert len(console.run("bench", "export", run_id, "--format", "csv").out.splitlines()) == 3
    wrapped = console.run("bench", "export", run_id, "--format", "csv", "--json").document
    assert len(wrapped["text"].splitlines()) == 3

    stopped = console.run("stop", "one", "--yes")
    assert stopped.code == 0, stopped.err
    assert console.server("one")["state"] == "stopped"
    log = [
        json.loads(line)
        for line in (console.folder.parents[1] / ".local/state/dflash-console/actions.jsonl").open()
    ]
    told = [(entry["action"], entry["phase"]) for entry in log]
    for action in ("start", "apply", "bench", "stop"):
        assert (action, "begin") in told
        assert (action, "end") in told


def test_a_start_that_fails_says_why_and_leaves_nothing(console: Console) -> None:
    done = console.run("start", "one", "--profile", "broken")
    assert done.code == 5
    assert "/no/such/model" in done.err
    assert console.server("one")["state"] == "failed"
    assert "/no/such/model" in console.server("one")["message"]
    assert console.run("start", "one").code == 0, "a failed server can be started again"


def test_a_switch_that_fails_says_that_the_old_server_is_gone(console: Console) -> None:
    assert console.run("start", "one").code == 0
    done = console.run("apply", "one", "--profile", "broken", "--yes")
    assert done.code == 6
    assert "ref-chain was stopped before and is not running" in done.err


def test_a_foreign_server_is_watched_never_stopped_and_can_be_adopted(console: Console) -> None:
    port = console.server("one")["port"]
    foreign = subprocess.Popen(
        [sys.executable, "-m", "dflash_engine", "serve", "--port", str(port), "--enable-metrics"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        console.wait_for("one", lambda s: s["state"] == "foreign", what="a foreign server")
        stop = console.run("stop", "one", "--yes")
        assert stop.code == 4
        assert "adopt" in stop.err
        start = console.run("start", "one")
        assert start.code == 4
        assert foreign.poll() is None, "it was not touched"
        assert console.run("adopt", "one").code == 4, "without a yes nothing is adopted"
        adopted = console.run("adopt", "one", "--yes")
        assert adopted.code == 0, adopted.err
        console.wait_for("one", lambda s: s["state"] == "ready", what="the adopted server")
        assert console.run("stop", "one", "--yes").code == 0
        assert foreign.wait(30) is not None
    finally:
        if foreign.poll() is None:
            foreign.kill()
        foreign.wait()


def test_read_only_refuses_everything_and_still_looks(console: Console) -> None:
    assert console.run("--read-only", "status", "--json").code == 0
    assert console.run("--read-only", "plan", "one").code == 0
    for words in (
        ["start", "one"],
        ["stop", "one", "--yes"],
        ["apply", "one", "--profile", "ref-ar", "--yes"],
    ):
        done = console.run("--read-only", *words)
        assert done.code == 4, words
        assert "read-only" in done.err


def test_unknown_names_and_unreachable_hosts_have_their_exit_codes(console: Console, sshd: Sshd) -> None:
    unknown = console.run("status", "oen")
    assert unknown.code == 2
    assert "did you mean 'one'" in unknown.err
    assert console.run("start", "one", "--profile", "ref-chian").code == 2
    sshd.stop()
    down = console.run("status", "--json")
    assert down.code == 3
    (server,) = down.document["servers"]
    assert server["state"] == "unreachable"
    assert server["decode_tok_s"] is None
    start = console.run("start", "one")
    assert start.code == 3
    assert "next:" in start.err


def test_a_server_that_is_killed_on_the_host_is_seen_as_failed(console: Console) -> None:
    assert console.run("start", "one").code == 0
    watch = console.spawn("status", "one", "--watch", "--json")
    assert watch.stdout is not None
    try:
        states = []
        killed = 0.0
        for line in watch.stdout:
            (server,) = json.loads(line)["servers"]
            states.append(server["state"])
            if server["state"] == "ready" and not killed:
                pids = [
                    int(p.name)
                    for p in Path("/proc").iterdir()
                    if p.name.isdigit() and _marked(p, server["run_id"])
                ]
                assert pids
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
            if server["state"] == "failed":
                assert (
                    "137" in server["message"]
                    or "SIGKILL" in server["message"]
                    or "KILL" in server["message"]
                )
                break
            assert not killed or time.monotonic() - killed < 60, states
    finally:
        watch.kill()
        watch.wait()


def _marked(folder: Path, run_id: str) -> bool:
    """Whether a process is the server of a run: its mark is in the environment, and it is the engine."""
    try:
        return run_id.encode() in (folder / "environ").read_bytes() and b"dflash_engine" in (
            folder / "cmdline"
        ).read_bytes().split(b"\0")
    except OSError:
        return False


def test_interrupting_a_start_says_what_it_leaves(console: Console) -> None:
    process = console.spawn("start", "one", "--profile", "ref-chain", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"launch"' in line and '"done"' in line:
            break
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    if process.returncode == 130:
        assert "goes on starting" in error
    else:
        assert process.returncode == 0, "it was ready before the signal came"
    console.wait_for("one", lambda s: s["state"] == "ready", what="the start that went on")
