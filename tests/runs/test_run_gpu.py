"""Whether a stopped run still holds GPU memory: the verdict on what the driver says, and on its silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_backend.hostside import _gpu_users, _procs


@pytest.fixture
def me() -> dict[int, int]:
    """This process as pid -> start time."""
    one = _procs.process(os.getpid())
    assert one is not None
    return {one.pid: one.start}


@pytest.fixture
def dead() -> dict[int, int]:
    """A process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    one = _procs.process(child.pid)
    child.communicate(b"\n")
    assert one is not None
    return {one.pid: one.start}


@pytest.mark.parametrize("machine_pids", [True, False])
def test_a_living_holder_is_named(me: dict[int, int], machine_pids: bool) -> None:
    free, note = _gpu_users.judge({os.getpid(), 1}, me, machine_pids)
    assert free is False
    assert f"pid {os.getpid()}" in note


def test_memory_of_a_dead_process_is_not_free_before_the_driver_says_so(dead: dict[int, int]) -> None:
    assert _gpu_users.judge(set(dead), dead, True)[0] is False
    assert _gpu_users.judge(set(), dead, True) == (True, "")


def test_a_recycled_pid_is_another_process(me: dict[int, int]) -> None:
    earlier = {pid: start - 1 for pid, start in me.items()}
    assert _gpu_users.judge(set(earlier), earlier, True) == (True, "")


def test_in_a_container_nothing_is_claimed(dead: dict[int, int]) -> None:
    free, note = _gpu_users.judge(set(dead), dead, False)
    assert free is None
    assert "container" in note


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'NVIDIA-SMI has failed: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("exit 9", "status 9"),
        ("sleep 600", "TimeoutExpired"),
        ("printf '\\377\\376 [Insufficient Permissions]\\n'; exit 4", "Insufficient Permissions"),
    ],
)
def test_a_driver_that_does_not_answer_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: dict[int, int], script: str, said: str
) -> None:
    program(tmp_path, monkeypatch, script)
    monkeypatch.setattr(_gpu_users, "SMI_WITHIN_S", 0.5)
    free, note = _gpu_users.free_of(me)
    assert free is None
    assert said in note


@pytest.mark.parametrize(
    ("script", "free"),
    [("true", True), ("echo 4242424", True), ("echo [N/A]", True), (f"echo {os.getpid()}", False)],
)
def test_lists_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: dict[int, int], script: str, free: bool
) -> None:
    program(tmp_path, monkeypatch, script)
    monkeypatch.setattr(_gpu_users, "first_namespace", lambda: True)
    assert _gpu_users.free_of(me)[0] is free


def test_without_a_driver_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, me: dict[int, int]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _gpu_users.free_of(me) == (None, "")


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A stand-in for nvidia-smi, the one part that a machine without a GPU cannot have."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
