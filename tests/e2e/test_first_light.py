"""First light: a real SGLang behind a real sshd, driven through the real command line, start to proof."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rigs.sglang_cpu.rig import SglangRig, _free_port, _one_at_a_time
from rigs.sshd import Sshd

from .console_driver import Console

PAIR = Path(str(resources.files("dflash_engine"))) / "data" / "reference_pair"

CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"

[servers.cpu]
host = "rig"
port = {port}
profile = "cpu-a"
"""
PROFILE_A = """
extends = "sglang-cpu-ar"
description = "the rig's target, as shipped"
target = "{target}"
[options]
max-running-requests = 16
decode-log-interval = 5
"""
PROFILE_B = """
extends = "cpu-a"
description = "fewer requests at once"
[options]
max-running-requests = 4
"""
JOB = """
name = "first-light"
concurrency = [2]
output_tokens = 24
requests = 4
warmup_requests = 1
temperature = 0.0

[prompts]
inline = [
  "def parse(line):\\n    name, _, value = line.partition(':')\\n",
  "class Stack:\\n    def __init__(self):\\n",
  "import os\\nimport sys\\n",
  "for key, value in sorted(counts.items()):\\n",
]
"""


@pytest.fixture(params=["0.5.11", "0.5.23"])
def console(request: pytest.FixtureRequest, sshd: Sshd) -> Iterator[Console]:
    rig = SglangRig(request.param).require()
    config = CONFIG.format(python=rig.home, port=_free_port())
    profiles = {"cpu-a": PROFILE_A.format(target=PAIR / "target"), "cpu-b": PROFILE_B}
    with _one_at_a_time():
        made = Console(sshd, config, profiles)
        try:
            yield made
        finally:
            made.run("stop", "cpu", "--yes")


def left_over(run_id: str) -> list[str]:
    """Command lines of processes that carry the mark of a run in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if run_id.encode() in environment:
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def streamed(port: int) -> list[dict[str, Any]]:
    """The events of one streaming request."""
    body = {
        "text": "import os\n\n\ndef main():\n",
        "sampling_params": {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        lines = [line.decode().strip() for line in response]
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.sglang
@pytest.mark.sshd
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_launch_watch_switch_bench_crash_find_stop(console: Console, tmp_path: Path) -> None:
    # The doctor sees what is there.
    checked = console.run("hosts", "check", "rig", "--json")
    assert checked.code in (0, 1), checked.err
    assert console.server("cpu")["state"] == "stopped"

    # A plan says the exact command and changes nothing.
    plan = console.run("plan", "cpu", "--json")
    assert plan.code == 0, plan.err
    assert "sglang.launch_server" in plan.document["command"]
    assert console.server("cpu")["state"] == "stopped"

    # The console is killed in the middle of the start; the run goes on and is found again.
    starting = console.spawn("start", "cpu", "--json")
    assert starting.stdout is not None
    seen = ""
    for line in starting.stdout:
        seen = line
        if '"name":"launch"' in line and '"done"' in line:
            break
    assert '"launch"' in seen, starting.stderr and starting.stderr.read()
    os.killpg(starting.pid, signal.SIGKILL)
    starting.wait()
    now = console.wait_for("cpu", lambda s: s["state"] in ("starting", "ready"), what="finding the run again")
    ready = console.wait_for("cpu", lambda s: s["state"] == "ready", what="ready")
    assert ready["profile"] == "cpu-a"
    assert ready["rss_mib"] > 100
    del now

    # Metrics and log are read while a request streams.
    port = ready["port"]
    events = streamed(port)
    assert events[-1]["meta_info"]["completion_tokens"] == 16
    watched = console.wait_for(
        "cpu", lambda s: s["running"] == 0 and s["token_usage"] is not None, what="figures"
    )
    assert watched["decode_tok_s"] is None or watched["decode_tok_s"] >= 0
    logs = console.run("logs", "cpu")
    assert "fired up and ready to roll" in logs.out

    # Another profile: stop, start through the stages, read back.
    applied = console.run("apply", "cpu", "--profile", "cpu-b", "--yes", "--json", timeout=600)
    assert applied.code == 0, applied.out + applied.err
    names = [event["name"] for event in applied.events if event["event"] == "step"]
    assert names.index("stop") < names.index("launch") < names.index("ready") < names.index("read back")
    assert "weights" in names or "kv-pool" in names or "warm-up" in names
    outcome = applied.events[-1]
    granted = {row["name"]: row for row in outcome["granted"]}
    assert granted["max-running-requests"] == {
        "name": "max-running-requests", "asked": "4", "granted": "4", "ok": True
    }  # fmt: skip
    run_id = console.run("status", "cpu", "--json").document["servers"][0].get("run_id")

    # One benchmark cell.
    (tmp_path / "job.toml").write_text(JOB)
    bench = console.run("bench", "run", str(tmp_path / "job.toml"), "--server", "cpu", "--json", timeout=600)
    assert bench.code == 0, bench.out + bench.err

    # Stop, and the proof that nothing is left.
    refused = console.run("stop", "cpu")
    assert refused.code == 4, "without a yes nothing is stopped"
    stopped = console.run("stop", "cpu", "--yes", "--json")
    assert stopped.code == 0, stopped.out + stopped.err
    assert console.server("cpu")["state"] == "stopped"
    if run_id:
        assert left_over(run_id) == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
