"""With ``--json`` standard output is JSON whatever happens: one document, or a document a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
[hosts.h]
address = "u@127.0.0.1:1"
[servers.one]
host = "h"
port = 30000
profile = "ref-ar"
"""
CASES = [
    ("--version", 0),
    ("", 2),
    ("nosuch", 2),
    ("info", 0),
    ("info --example", 0),
    ("hosts", 2),
    ("hosts list", 0),
    ("hosts check h", 3),
    ("hosts check nosuch", 2),
    ("hosts trust h", 3),
    ("profiles list", 0),
    ("profiles show ref-ar", 0),
    ("profiles show nosuch", 2),
    ("profiles validate", 0),
    ("profiles diff ref-ar ref-chain", 1),
    ("profiles new mine", 0),
    ("profiles new ref/ar", 2),
    ("plan", 2),
    ("plan one", 3),
    ("plan one --sglang-version 0.5.14", 0),
    ("status", 3),
    ("status one", 3),
    ("status nosuch", 2),
    ("status --once --watch", 2),
    ("start one", 3),
    ("stop one --yes", 3),
    ("restart one --yes", 3),
    ("apply one --profile ref-chain --yes", 3),
    ("apply one", 2),
    ("adopt one --yes", 3),
    ("logs one", 3),
    ("logs one --since 5x", 2),
    ("--read-only start one", 4),
    ("bench", 2),
    ("bench list", 0),
    ("bench show nosuch", 2),
    ("bench show ../..", 2),
    ("bench run /no/such.toml", 2),
    ("replay /no/such", 2),
    ("inspect /no/such", 2),
    ("demo", 2),
    ("demo --headless --servers 0", 2),
    ("engine", 2),
]


@pytest.mark.parametrize(("words", "code"), CASES, ids=[words or "(none)" for words, _ in CASES])
def test_standard_output_is_json(tmp_path: Path, words: str, code: int) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "dflash_console", "--config", str(config), "--json", *words.split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["schema"] == 1
    if code >= 2 and not words.startswith(("status", "hosts check h")):
        assert json.loads(done.stdout)["error"]["exit_code"] == code
        assert "\n" not in done.stdout.strip(), "it may follow the lines of a stream"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["demo"]])
def test_screens_without_a_terminal_say_what_to_use_instead(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_console", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "terminal" in done.stderr
    assert "status --json" in done.stderr
    assert done.stdout == ""
