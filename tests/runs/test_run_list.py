"""Listing: from the host's disk alone, whatever state the folders are in, and quick with hundreds of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_backend.core.samples import RunStatus
from dflash_backend.hostside import _members, _procs, _runfolder, _runlist
from dflash_backend.runs.rows import explain_exit, rows_of, run_status
from dflash_backend.runs.service import HostRuns, stop_report
from rigs.run_host import Host


def folder(host: Host, number: int = 0, **files: str | bytes) -> Path:
    """A run folder made by hand."""
    path = host.root / f"20261130T0000{number:02d}Z-{number:08x}"
    path.mkdir(parents=True, mode=0o700)
    for name, content in files.items():
        path.joinpath(name.replace("_", ".")).write_bytes(
            content.encode() if isinstance(content, str) else content
        )
    return path


async def test_no_runs_at_all(runs: HostRuns, host: Host) -> None:
    assert await runs.list_runs() == ()


async def test_newest_first_and_only_the_last_of_a_server_carries_its_log(
    runs: HostRuns, host: Host, over: Callable[[RunStatus], None]
) -> None:
    launched = []
    for _ in range(2):
        launched.append(await runs.launch(host.spec("exit=0")))
        over(launched[-1])
        time.sleep(1.0 - time.time() % 1.0)  # run ids sort by the second
    found = await runs.list_runs()
    assert [run.run_id for run in found] == [run.run_id for run in reversed(launched)]
    assert [bool(run.log_tail) for run in found] == [True, False]
    assert {run.profile_toml for run in found} == {'name = "tree"\n'}


DAMAGE: dict[str, tuple[dict[str, str | bytes], str]] = {
    "empty": ({}, "run.json is missing"),
    "empty record": ({"run_json": ""}, "run.json is damaged"),
    "half a record": ({"run_json": '{"server": "one", "argv": ["py'}, "run.json is damaged"),
    "another type": ({"run_json": "[1, 2]"}, "run.json is damaged: no JSON object"),
    "binary": ({"run_json": b"\xff\x00\xfe"}, "run.json is damaged"),
    "deep": ({"run_json": "[" * 100_000}, "run.json is damaged"),
    "wrong cells": (
        {"run_json": '{"server": 5, "port": "x", "argv": 7, "started_at": []}'},
        "launch was cut off",
    ),
    "damaged exit": ({"run_json": '{"server": "one"}', "exit": "what"}, "exit file is damaged"),
    "damaged stop": ({"run_json": '{"server": "one"}', "stop": "{"}, "stop request is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_folder_is_a_row_that_says_so(runs: HostRuns, host: Host, damage: str) -> None:
    files, said = DAMAGE[damage]
    path = folder(host, **files)
    os.utime(path, (1, 1))
    good = await runs.launch(host.spec())
    by_id = {run.run_id: run for run in await runs.list_runs()}
    assert said in by_id[path.name].note
    assert not by_id[path.name].alive
    assert by_id[good.run_id].alive
    assert by_id[good.run_id].note == ""


async def test_strange_entries_are_rows_or_nothing_but_no_crash(runs: HostRuns, host: Host) -> None:
    folder(host)
    (host.root / ".hidden").mkdir()
    (host.root / "a file").write_text("x")
    (host.root / "20261130T000001Z-00000001").symlink_to("/etc")
    (host.root / "20261130T000002Z-00000002").symlink_to("nowhere")
    os.mkdir(os.fsencode(host.root) + b"/bad \xff\x1b]0;x\x07 name", 0o700)
    os.mkfifo(host.root / "fifo")
    (folder(host, 3) / "placeholder").touch()
    os.mkfifo(host.root / "20261130T000003Z-00000003" / "run.json")
    notes = {run.run_id: run.note for run in await runs.list_runs()}
    assert "is a file" in notes["a file"]
    assert "is a link" in notes["20261130T000001Z-00000001"]
    assert "run.json is damaged" in notes["20261130T000003Z-00000003"]
    assert not any("\x1b" in name for name in notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
async def test_a_folder_of_somebody_else_is_not_believed(runs: HostRuns, host: Host) -> None:
    path = folder(host, run_json='{"server": "one"}')
    os.chown(path, 65534, 65534)
    (run,) = await runs.list_runs()
    assert "belongs to another user" in run.note
    assert run.server == ""


async def test_a_launch_that_was_cut_off_loses_its_secrets(runs: HostRuns, host: Host) -> None:
    path = folder(host, run_json='{"server": "one"}', environment='{"env": {"TOKEN": "x"}}')
    (run,) = await runs.list_runs()
    assert run.note == "being launched"
    assert (path / "environment").exists()
    os.utime(path, (1, 1))
    (run,) = await runs.list_runs()
    assert "cut off" in run.note
    assert not (path / "environment").exists()


async def test_a_run_recorded_on_another_host_is_not_judged(runs: HostRuns, host: Host) -> None:
    """A home folder that several hosts share."""
    identity = "pid=4242\nstart=1\nboot_id=other\npgid=4242\nsession=4242\n"
    folder(host, run_json='{"server": "one", "machine": "elsewhere"}', pid=identity)
    (run,) = await runs.list_runs()
    assert not run.alive
    assert "recorded on elsewhere" in run.note


def many(host: Host, number: int) -> None:
    """Folders of runs that are over."""
    host.root.mkdir(parents=True, mode=0o700)
    for index in range(number):
        path = host.root / f"202611{index // 1000 + 10}T000000Z-{index:08x}"
        path.mkdir(mode=0o700)
        record = {
            "server": f"s{index % 8}",
            "argv": ["x"] * 40,
            "profile_digest": "d",
            "profile_toml": "y" * 2000,
        }
        (path / "run.json").write_text(json.dumps(record))
        (path / "pid").write_text("pid=4242\nstart=1\nboot_id=x\npgid=4242\nsession=4242\n")
        (path / "exit").write_text("0 1.0 1\n")
        (path / "log").write_text("line\n" * 1000)


async def test_hundreds_of_folders_are_one_answer(runs: HostRuns, host: Host) -> None:
    many(host, 600)
    found = await runs.list_runs()
    assert len(found) == 600
    assert sum(bool(run.log_tail) for run in found) == 8
    assert all(run.profile_toml for run in found)


async def test_a_second_look_reads_only_what_can_have_changed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a monitor asks every second: the folders of finished runs are not opened again."""
    many(host, 50)
    look = _runlist.RunList(str(host.root))
    first = look.rows(tails=False)
    opened: list[str] = []
    monkeypatch.setattr(_runfolder, "read", lambda *args: opened.append(args[0]))
    assert look.rows(tails=False) == first
    assert opened == []


class TestRows:
    """From JSON to samples: any JSON, never an exception, never a secret."""

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
    keys = st.sampled_from([*_runlist.empty_row("x", "y"), "profile_ref", "other"])

    @given(row=st.dictionaries(keys, json_values), profiles=st.dictionaries(st.text(max_size=3), json_values))
    @settings(max_examples=200, deadline=None)
    def test_any_row_becomes_a_status(self, row: dict[str, object], profiles: dict[str, object]) -> None:
        status = run_status(row, profiles)
        assert status.alive is (row.get("alive") is True)
        explain_exit(status)

    @given(answer=json_values)
    @settings(deadline=None)
    def test_any_answer_is_a_list_of_rows(self, answer: object) -> None:
        rows_of(answer)

    @given(
        report=st.dictionaries(
            st.sampled_from("exit_code group_gone gpu_free port_free killed notes".split()), json_values
        )
    )
    @settings(deadline=None)
    def test_what_is_not_said_is_not_proven(self, report: dict[str, object]) -> None:
        typed = stop_report("x", report)
        if typed.complete:
            assert report["group_gone"] is True
            assert report["port_free"] is True

    def test_secrets_of_a_command_line_are_hidden(self) -> None:
        argv = [
            "python",
            "-m",
            "s",
            "--api-key",
            "abc123",
            "--admin-api-key=def456",
            "--max-total-tokens",
            "8192",
        ]
        status = run_status({"argv": argv, "log_tail": "api_key='abc123'\nthe word hush"}, secrets=("hush",))
        assert status.argv == (*argv[:4], "«redacted»", "--admin-api-key=«redacted»", *argv[6:])
        assert "abc123" not in status.log_tail
        assert "hush" not in status.log_tail


@pytest.mark.parametrize(
    ("code", "asked", "said"),
    [
        (0, False, "without an error"),
        (0, True, "stopped"),
        (143, True, "stopped"),
        (137, True, "stopped (137: SGLang"),
        (143, False, "SIGTERM"),
        (137, False, "out of memory"),
        (139, False, "invalid memory access"),
        (134, True, "CUDA"),
        (1, True, "failed with exit code 1"),
        (130, False, "SIGINT"),
        (255, False, "exit code 255"),
        (126, False, "not executable"),
    ],
)
def test_exit_codes_in_words(code: int, asked: bool, said: str) -> None:
    run = RunStatus(
        run_id="x",
        server="s",
        folder="/",
        manager="setsid",
        exit_code=code,
        stop_requested_at=1.0 if asked else None,
    )
    assert said in explain_exit(run)


class TestStat:
    """/proc/PID/stat: the name may be anything."""

    @given(name=st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name))
    def test_any_name(self, name: bytes) -> None:
        line = (
            b"42 (" + name + b") S 1 42 43 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 1000 55 18446744073709551615\n"
        )
        one = _procs.parse_stat(line)
        assert one is not None
        assert (one.pid, one.ppid, one.pgrp, one.session, one.state, one.start, one.rss) == (
            42,
            1,
            42,
            43,
            "S",
            777,
            55,
        )

    @given(line=st.binary(max_size=60))
    def test_what_is_cut_off_is_none(self, line: bytes) -> None:
        assert _procs.parse_stat(line) is None

    def test_this_process(self) -> None:
        one = _procs.process(os.getpid())
        assert one is not None
        assert one.ppid == os.getppid()
        assert one.living
        assert _procs.owner(os.getpid()) == os.getuid()
        assert abs(_procs.started_at(one, time.time()) - time.time()) < 24 * 3600
        assert os.getppid() in _procs.ancestors(os.getpid(), _procs.processes())


class TestGroupProof:
    """Which processes of a group count as a run's once its leader is gone."""

    identity = _runfolder.Identity(pid=100, start=1000, boot_id="b", pgid=100, session=100)

    @staticmethod
    def member(
        start: int, *, pid: int = 200, session: int = 100, state: str = "S", pgrp: int = 100
    ) -> _procs.Process:
        return _procs.Process(pid, 1, pgrp, session, state, start, 1, "x")

    def group(
        self, *table: _procs.Process, exit_ticks: int | None, leads: bool = False, boot: str = "b"
    ) -> list[int]:
        ending = None if exit_ticks is None else _runfolder.Exit(0, 0.0, exit_ticks)
        found = _members.of_group(self.identity, ending, {one.pid: one for one in table}, boot, leads)
        return sorted(one.pid for one in found)

    def test_a_member_that_began_before_the_exit_proves_the_group(self) -> None:
        assert self.group(self.member(1500), self.member(9000, pid=201), exit_ticks=2000) == [200, 201]

    def test_members_that_all_began_later_may_be_strangers(self) -> None:
        assert self.group(self.member(2500), exit_ticks=2000) == []

    def test_without_a_recorded_exit_nothing_is_proven(self) -> None:
        assert self.group(self.member(1500), exit_ticks=None) == []

    def test_another_session_is_no_proof(self) -> None:
        assert self.group(self.member(1500, session=7), exit_ticks=2000) == []

    def test_another_boot_is_no_proof(self) -> None:
        assert self.group(self.member(1500), exit_ticks=2000, boot="later") == []

    def test_a_zombie_leader_still_holds_the_number(self) -> None:
        zombie = self.member(1000, pid=100, state="Z")
        assert self.group(zombie, self.member(2500), exit_ticks=None) == [200]

    def test_dead_members_do_not_count(self) -> None:
        assert self.group(self.member(1500, state="Z"), exit_ticks=2000) == []


ODD = ["NaN", "Infinity", "-Infinity", "1" + "0" * 400, '"7"', "true", "[]", "{}"]


@pytest.mark.parametrize("value", ODD)
def test_a_number_that_is_none_counts_as_missing(value: str) -> None:
    row = json.loads('{"pid": X, "exit_code": X, "started_at": X, "gpus": [X, 1]}'.replace("X", value))
    status = run_status(row)
    assert (status.pid, status.exit_code, status.started_at, status.gpus) == (None, None, None, (1,))


def test_text_of_any_length_is_cut() -> None:
    long = "x" * 3_000_000
    status = run_status(dict.fromkeys(("run_id", "note", "log_path", "profile_toml", "log_tail"), long))
    assert len(status.run_id) <= 200
    assert len(status.note) <= 600
    assert len(status.log_path) <= 4096
    assert len(status.profile_toml) <= 65536
    assert len(status.log_tail) <= 1024 * 1024
