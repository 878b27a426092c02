"""Servers that answer as SGLang does, with the real sources of a release in their own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from test_audit_patched import right

from dflash_backend.audit.inputs import MemoryTree
from e2e.console_driver import Console
from rigs.sglang_sources import stock
from rigs.sshd import Sshd, free_port, poll_until

pytestmark = pytest.mark.sshd
TESTS = Path(__file__).parents[1]
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
DRAFTER = json.loads(
    (resources.files("dflash_engine") / "data" / "reference_pair" / "drafter" / "config.json").read_text()
)
"""Three layers: sliding, sliding, full; window 256."""
CONFIG = """
[hosts.rig]
address = "rig"
python = "{python}"

[servers.one]
host = "rig"
port = {port}
{profile}
"""
PROFILE = """
description = "windowed drafter"
target = "{target}"
drafter = "{drafter}"
algorithm = "DFLASH"
window = {window}
[options]
attention-backend = "triton"
"""


class Place:
    """The host's disk: environments with SGLang in them, a drafter, a server that answers as one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drafter = folder / "drafter"
        self.drafter.mkdir(parents=True)
        (self.drafter / "config.json").write_text(json.dumps(DRAFTER))
        self.processes: list[subprocess.Popen[bytes]] = []

    def venv(self, name: str, tree: MemoryTree | None, version: str = "") -> Path:
        venv = self.folder / name
        site = venv / "lib" / NAME / "site-packages"
        site.mkdir(parents=True)
        (venv / "bin").mkdir()
        (venv / "bin" / "python").symlink_to(sys.executable)
        (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
        for path, data in (tree.files if tree is not None else {}).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(data)
        if tree is not None:
            (site / "sglang" / "__init__.py").write_text("raise SystemExit('never imported')\n")
            info = site / f"sglang-{version}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        return venv

    def serve(self, venv: Path, capture: str, port: int, **info: object) -> None:
        """A foreign server in this environment: it answers what SGLang answered when it was captured."""
        process = subprocess.Popen(
            [venv / "bin" / "python", TESTS / "telemetry" / "captured_server.py",
             "--port", str(port), "--capture", TESTS / "data" / "captures" / capture],
            env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]},
        )  # fmt: skip
        self.processes.append(process)
        base = f"http://127.0.0.1:{port}"

        def up() -> bool:
            assert process.poll() is None
            try:
                return bool(urllib.request.urlopen(f"{base}/health", timeout=5).status)
            except OSError:
                return False

        poll_until(up, what="the server")
        settings = {"speculative_draft_model_path": str(self.drafter), **info}
        data = json.dumps({"info": settings}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{base}/_set", data, method="POST"), timeout=5).read()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "host")
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def console(sshd: Sshd, python: Path | str, port: int, profiles: dict[str, str] | None = None) -> Console:
    profile = f'profile = "{next(iter(profiles))}"' if profiles else ""
    return Console(sshd, CONFIG.format(python=python, port=port, profile=profile), profiles or {})


def layers(document: dict[str, Any]) -> list[tuple[object, ...]]:
    return [(row["declared"], row["attended"], row["causal"]) for row in document["layers"]]


@pytest.mark.parametrize(
    ("release", "verdict", "attended"),
    [
        ("0.5.11", "ignored", [(256, None, False)] * 2 + [(None, None, False)]),
        ("0.5.14", "enforced", [(256, 256, True)] * 2 + [(None, None, False)]),
    ],
)
def test_a_foreign_server_is_audited_by_its_own_sources(
    sshd: Sshd, place: Place, release: str, verdict: str, attended: list[tuple[object, ...]]
) -> None:
    """The host is configured with another interpreter: what counts is the one that the process runs in."""
    served = place.venv("served", stock(release), release)
    other = place.venv("configured", None)
    port = free_port()
    place.serve(served, f"sglang-{release}-cpu-dflash", port)
    done = console(sshd, other, port).run("audit", "one", "--json")
    assert done.document["verdict"] == verdict, done.out
    assert done.code == (0 if verdict == "enforced" else 1)
    assert done.document["sglang_version"] == release
    assert layers(done.document) == attended
    proofs = {
        proof["strength"]: proof["where"] for row in done.document["layers"] for proof in row["evidence"]
    }
    assert set(proofs) == {"config", "source"}
    assert str(served) in proofs["source"]
    if verdict == "ignored":
        commands = [remedy["command"] for remedy in done.document["remedies"]]
        assert "dflash-console plugin install rig" in commands


def test_sources_that_are_not_those_that_run_are_not_believed(sshd: Sshd, place: Place) -> None:
    served = place.venv("served", stock("0.5.14"), "0.5.14")
    port = free_port()
    place.serve(served, "sglang-0.5.11-cpu-dflash", port, version="0.5.11")
    done = console(sshd, served, port).run("audit", "one", "--json")
    assert done.document["verdict"] == "unknown", done.out
    assert any("these are not the files that it runs" in text for text in done.document["missing"])
    assert {proof["strength"] for row in done.document["layers"] for proof in row["evidence"]} == {"config"}
    says = next(one for one in done.document["findings"] if one["code"] == "release-says")
    assert "0.5.11" in says["text"]


def test_a_tree_patched_while_the_server_runs_is_not_believed(sshd: Sshd, place: Place) -> None:
    served = place.venv("served", stock("0.5.11"), "0.5.11")
    port = free_port()
    place.serve(served, "sglang-0.5.11-cpu-dflash", port)
    model = served / "lib" / NAME / "site-packages" / "sglang" / "srt" / "models" / "dflash.py"
    later = model.stat().st_mtime + 3600
    os.utime(model, (later, later))
    done = console(sshd, served, port).run("audit", "one", "--json")
    assert any("changed after the server started" in text for text in done.document["missing"])


def test_what_the_plugin_reports_is_the_strongest(sshd: Sshd, place: Place) -> None:
    served = place.venv("served", stock("0.5.11"), "0.5.11")
    port = free_port()
    report = {
        "schema": 1, "plugin": "0.1.0", "sglang": "0.5.11", "mode": "patched", "hooks": [], "sources": [],
        "draft_backend": "triton", "cached": None, "note": None,
        "layers": [{"layer": i, "declared": 256 if i < 2 else None, "attended": 256 if i < 2 else None,
                    "causal": i < 2} for i in range(3)],
    }  # fmt: skip
    states = [{"dflash_sglang": report}]
    place.serve(served, "sglang-0.5.11-cpu-dflash", port, internal_states=states)
    done = console(sshd, served, port).run("audit", "one", "--json")
    assert done.document["verdict"] == "enforced", done.out
    assert {p["strength"] for row in done.document["layers"] for p in row["evidence"]} == {"config", "plugin"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"sliding_window": 20', "JSON"),
        ("\x1b]0;owned\x07[red]not json", "JSON"),
        ('{"layer_types": "\x1b[31m", "num_hidden_layers": "many", "dflash_config": {}}', None),
        (None, "No such file"),
    ],
)
def test_a_hostile_or_half_written_config_is_unknown_with_its_reason(
    sshd: Sshd, place: Place, text: str | None, words: str | None
) -> None:
    served = place.venv("served", stock("0.5.14"), "0.5.14")
    port = free_port()
    config = place.drafter / "config.json"
    if text is None:
        config.unlink()
    else:
        config.write_text(text)
    place.serve(served, "sglang-0.5.14-cpu-dflash", port)
    done = console(sshd, served, port).run("audit", "one", "--json")
    assert done.code == 1
    assert done.document["verdict"] == "unknown"
    assert done.document["missing"]
    assert words is None or any(words in line for line in done.document["missing"])
    assert "\x1b" not in console(sshd, served, port).run("audit", "one").out


@pytest.mark.parametrize(
    ("release", "window", "warned"),
    [("0.5.11", '"config"', "ignored"), ("0.5.11", "512", "clamped"), ("0.5.14", '"config"', None),
     ("patched", '"config"', None)],
)  # fmt: skip
def test_a_plan_warns_of_a_window_that_this_host_will_not_enforce(
    sshd: Sshd, place: Place, release: str, window: str, warned: str | None
) -> None:
    tree = right() if release == "patched" else stock(release)
    venv = place.venv("venv", tree, "0.5.11" if release == "patched" else release)
    profile = PROFILE.format(target=place.folder / "target", drafter=place.drafter, window=window)
    made = console(sshd, venv, free_port(), {"windowed": profile})
    plan = made.run("plan", "one", "--json")
    said = [warning["text"] for warning in plan.document["warnings"] if "window" in warning["text"]]
    if warned is None:
        assert said == [], "nothing is said of the release where the host itself does better"
    else:
        (text,) = said
        assert text.startswith(f"drafter window: {warned}")
        assert "plugin install rig" in text
    audit = made.run("audit", "one", "--json")
    assert audit.document.get("basis") == "profile", audit
    assert audit.document["verdict"] == (warned or "enforced")


def test_a_drafter_without_windows_is_planned_without_a_warning(sshd: Sshd, place: Place) -> None:
    plain = {key: value for key, value in DRAFTER.items() if "sliding" not in key and "window" not in key}
    (place.drafter / "config.json").write_text(json.dumps({**plain, "layer_types": ["full_attention"] * 3}))
    venv = place.venv("venv", stock("0.5.11"), "0.5.11")
    profile = PROFILE.format(target=place.folder / "target", drafter=place.drafter, window='"config"')
    plan = console(sshd, venv, free_port(), {"windowed": profile}).run("plan", "one", "--json")
    assert not [w for w in plan.document["warnings"] if "window" in w["text"]]
