"""The engine server as a process: start-up failures say why, the end is orderly."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib import resources
from pathlib import Path

import pytest

from .conftest import TREE, free_port, serve

PAIR = Path(str(resources.files("dflash_engine"))) / "data" / "reference_pair"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash_engine", "serve", "--port", str(free_port()), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def copy_pair(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(PAIR / name, folder / name, copy_function=shutil.copyfile))


def test_term_ends_it_orderly(tmp_path: Path) -> None:
    with serve(tmp_path, "--model-path", "builtin:target") as server:
        with urllib.request.urlopen(f"{server.url}/health") as response:
            assert response.status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert "SIGTERM received" in server.log()


def test_without_enable_metrics_there_is_no_metrics_page(tmp_path: Path) -> None:
    with serve(tmp_path) as server, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.url}/metrics")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--speculative-algorithm", "EAGLE"], "EAGLE"),
        (["--speculative-algorithm", "DFLASH"], "--speculative-draft-model-path"),
        (["--speculative-ddtree-budget", "8"], "DDTREE"),
        (["--context-length", "0"], "--context-length"),
        (["--no-such-option"], "--no-such-option"),
        (["--port", "99999"], "--port"),
    ],
)
def test_bad_usage_is_exit_2_and_names_the_option(options: list[str], word: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert word in done.stderr


def test_a_missing_model_and_an_unknown_builtin_say_so(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "builtin:other"):
        done = run("--model-path", path)
        assert done.returncode == 1
        assert "model_path" in done.stderr
        assert "Traceback" not in done.stderr


def test_truncated_weights_a_wrong_config_and_a_missing_mask_token_name_what_is_wrong(tmp_path: Path) -> None:
    target = copy_pair(tmp_path, "target")
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])
    done = run("--model-path", str(target))
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr
    assert "Traceback" not in done.stderr

    drafter = copy_pair(tmp_path, "drafter")
    config = json.loads((drafter / "config.json").read_text())
    tree = [word if word != "builtin:drafter" else str(drafter) for word in TREE]
    for change, word in (
        ({"block_size": -3}, "block_size"),
        ({"num_hidden_layers": 4}, ""),
        (
            {"dflash_config": {k: v for k, v in config["dflash_config"].items() if k != "mask_token_id"}},
            "mask",
        ),
    ):
        (drafter / "config.json").write_text(json.dumps({**config, **change}))
        done = run(*tree)
        assert done.returncode == 1, change
        assert word in done.stderr
        assert "ERROR: " in done.stderr
        assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
