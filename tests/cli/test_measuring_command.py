"""From the doctor to a benchmark and its export: processes of their own, over a real sshd, on the engine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sshd


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def console(sshd, tmp_path):
    """Runs the command line with a configuration of one host and one server; stops the server at the end."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'[hosts.rig]\naddress = "rig"\npython = "{sys.executable}"\n'
        f'[servers.eng]\nhost = "rig"\nport = {free_port()}\nprofile = "ref-chain"\n'
    )

    def run(*words, timeout=120):
        return subprocess.run(
            [sys.executable, "-m", "dflash_console", "--config", str(path), *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=dict(os.environ),
        )  # fmt: skip

    yield run
    run("stop", "eng", "--yes")


def test_the_doctor_then_a_benchmark_and_its_export(console, tmp_path):
    doctor = console("hosts", "check", "--json")
    [host] = json.loads(doctor.stdout)["hosts"]
    found = {finding["name"]: finding["status"] for finding in host["findings"]}
    assert found["ssh"] == found["host key"] == found["python"] == "ok", host

    job = tmp_path / "job.toml"
    job.write_text(
        'name = "small"\nconcurrency = [1, 2]\noutput_tokens = 16\nrequests = 2\nwarmup_requests = 1\n'
    )
    early = console("bench", "run", str(job))
    assert early.returncode == 4
    assert "Traceback" not in early.stderr

    started = console("start", "eng")
    assert started.returncode == 0, started.stderr
    done = console("bench", "run", str(job), "--json", timeout=240)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["started", "cell", "cell", "summary"], done.stderr
    assert all(event["schema"] == 1 for event in events)
    assert done.returncode in (0, 1), done.stderr
    cells = events[1:3]
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    assert all(cell["failed"] == 0 and cell["accept_length"] > 1.0 for cell in cells)
    assert done.returncode == (1 if any(cell["unclean"] for cell in cells) else 0)

    run_id = events[0]["run"]
    listed = json.loads(console("bench", "list", "--json").stdout)["runs"]
    assert [(row["id"], row["server"], row["cells_done"]) for row in listed] == [(run_id, "eng", 2)], listed
    shown = console("bench", "show", "last")
    assert run_id in shown.stdout
    file = tmp_path / "out.csv"
    assert console("bench", "export", run_id, "--format", "csv", "--output", str(file)).returncode == 0
    assert len(Path(file).read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bench", "run", "/no/such.toml"], 2, "/no/such.toml: there is no such job file"),
        (["bench", "run", "no-such"], 2, "jobs: first-look; they lie in jobs/ beside the configuration"),
        (["bench", "run", "JOB", "--server", "egn"], 2, "did you mean 'eng'?"),
        (["bench", "show", "nope"], 2, "there is no run 'nope'"),
        (["bench", "export", "last", "--format", "mdd"], 2, "did you mean md?"),
        (["hosts", "check", "rgi"], 2, "did you mean 'rig'?"),
    ],
)
def test_bad_usage(console, tmp_path, words, code, said):
    job = tmp_path / "job.toml"
    job.write_text('name = "small"\n')
    done = console(*[str(job) if word == "JOB" else word for word in words])
    assert done.returncode == code, done.stderr
    assert said in done.stderr


def test_a_host_that_does_not_answer_is_exit_3_and_a_report(console, sshd):
    sshd.stop()
    done = console("hosts", "check", "--timeout", "5", "--json")
    assert done.returncode == 3
    [host] = json.loads(done.stdout)["hosts"]
    assert host["ok"] is False
    assert {"name": "ssh", "status": "fail"}.items() <= host["findings"][0].items()
