"""The action log survives crashes and damage, and holds no secret."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dflash_backend.control.action_log import ActionLog
from dflash_backend.core.errors import FailedError


def test_intention_and_end_share_an_id_and_the_file_is_private(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "state" / "actions.jsonl")
    ident = log.begin("apply", server="a", host="h", details={"command": "python --api-key s3cr3t-value"})
    log.end(ident, "apply", server="a", host="h", ok=True, details={"summary": "ready"})
    begin, end = log.entries()
    assert (begin["id"], begin["phase"]) == (end["id"], "begin")
    assert end["details"] == {"ok": True, "summary": "ready"}
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    assert "s3cr3t-value" not in log.path.read_text()


def test_an_intention_without_an_end_is_seen_and_damaged_lines_are_skipped(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "actions.jsonl")
    log.begin("stop", server="a", host="h", details={})
    with log.path.open("ab") as stream:
        stream.write(b'{"half": \xff\n[1]\n')
    log.begin("start", server="a", host="h", details={})
    assert [entry["action"] for entry in log.entries()] == ["stop", "start"]


def test_a_log_that_cannot_be_written_stops_the_action(tmp_path: Path) -> None:
    (tmp_path / "actions.jsonl").mkdir()
    with pytest.raises(FailedError, match="cannot be written") as caught:
        ActionLog(tmp_path / "actions.jsonl").begin("stop", server="a", host="h", details={})
    assert "nothing was done" in caught.value.unchanged
    assert str(tmp_path) in caught.value.where


def test_an_end_that_cannot_be_written_takes_nothing_back(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "actions.jsonl")
    ident = log.begin("stop", server="a", host="h", details={})
    log.path.unlink()
    log.path.mkdir()
    log.end(ident, "stop", server="a", host="h", ok=True, details={})


def test_newlines_in_names_stay_one_line(tmp_path: Path) -> None:
    log = ActionLog(tmp_path / "actions.jsonl")
    log.begin("start", server="a\nb", host="h", details={"x": "1\n2"})
    lines = log.path.read_text().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["server"] == "a\nb"
