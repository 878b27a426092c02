"""The audit of servers that run: the real command line, a real sshd, the reference engine in every mode."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from e2e.console_driver import Console
from rigs.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd

CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"

[servers.one]
host = "rig"
port = {port}
profile = "ref-chain"

[servers.bare]
host = "rig"
port = {other}
"""
EXPECTED = {
    "ref-chain": ("enforced", 0, [(256, 256, True, True)] * 2 + [(None, None, False, False)]),
    "ref-window-ignored": ("ignored", 1, [(256, None, True, False)] * 2 + [(None, None, False, False)]),
    "ref-window-clamped": ("clamped", 1, [(256, 256, True, False)] * 2 + [(None, 256, False, False)]),
    "ref-ar": ("not-declared", 0, []),
}


@pytest.fixture
def console(sshd: Sshd) -> Iterator[Console]:
    config = CONFIG.format(python=sys.executable, port=free_port(), other=free_port())
    made = Console(sshd, config, {})
    yield made
    made.run("stop", "one", "--yes")


def rows(document: dict[str, object]) -> list[tuple[object, ...]]:
    layers = document["layers"]
    assert isinstance(layers, list)
    return [(row["declared"], row["attended"], row["causal_declared"], row["causal"]) for row in layers]


@pytest.mark.parametrize("profile", EXPECTED)
def test_a_running_engine_in_every_mode(console: Console, profile: str) -> None:
    verdict, code, layers = EXPECTED[profile]
    assert console.run("start", "one", "--profile", profile).code == 0
    done = console.run("audit", "one", "--json")
    assert done.code == code, done.err
    assert done.document["verdict"] == verdict
    assert done.document["basis"] == "running"
    assert done.document["profile"] == profile
    assert rows(done.document) == layers
    if layers:
        strengths = {proof["strength"] for row in done.document["layers"] for proof in row["evidence"]}
        assert strengths == {"config", "plugin"}
    text = console.run("audit", "one")
    assert text.code == code
    assert text.out.startswith(f"one: {verdict}")
    if layers:
        assert done.document["sglang_version"] is None, "an engine is no SGLang"
    assert console.server("one")["audit"] == verdict, "status carries it as well"


def test_a_stopped_server_is_audited_as_it_would_be_launched(console: Console) -> None:
    done = console.run("audit", "one", "--json")
    assert done.code == 0, done.err
    assert (done.document["verdict"], done.document["basis"]) == ("enforced", "profile")
    assert any("ref-chain would launch" in finding["text"] for finding in done.document["findings"])


def test_all_servers_and_the_exit_codes(console: Console, sshd: Sshd) -> None:
    done = console.run("audit", "--json")
    by_name = {one["subject"]: one["verdict"] for one in done.document["servers"]}
    assert by_name == {"one": "enforced", "bare": "unknown"}
    assert done.code == 1
    assert console.run("audit", "oen").code == 2
    assert console.run("audit", "--measure").code == 2
    assert console.run("audit", "one", "--draft-config", "/x").code == 2
    measure = console.run("audit", "one", "--measure")
    assert measure.code == 4
    assert "a benchmark needs a ready server" in measure.err
    sshd.stop()
    assert console.run("audit", "one").code == 3
    assert console.run("audit").code == 3


def test_a_measurement_is_refused_while_others_use_the_server(console: Console) -> None:
    assert console.run("start", "one").code == 0
    port = console.server("one")["port"]
    body = {"text": "def main():\n", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        data=json.dumps({**body, "stream": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.readline(), "the other request runs"
        done = console.run("audit", "one", "--measure", "--json")
    assert done.code == 4
    assert "of others in progress" in done.document["error"]["what"]
    assert "--force" in done.document["error"]["next_step"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_measurement_stands_beside_the_other_evidence(console: Console) -> None:
    assert console.run("start", "one", "--profile", "ref-window-ignored").code == 0
    done = console.run("audit", "one", "--measure", "--json", timeout=800)
    assert done.code == 1, done.err
    assert done.document["verdict"] == "ignored"
    assert done.document["measured"]["shape"] == "hardly accepted"
    assert len(done.document["measured"]["points"]) == 4
    assert done.document["findings"][0]["code"] == "measured"
    assert {proof["strength"] for proof in done.document["findings"][0]["evidence"]} == {"measured"}
    log = (console.folder.parents[1] / ".local/state/dflash-console/actions.jsonl").read_text()
    assert "accept length against context length" in log
