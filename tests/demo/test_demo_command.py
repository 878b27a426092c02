"""The demo as a user meets it: it comes up, and however it ends nothing of it is left."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_backend.core.paths import state_dir
from dflash_backend.demo import cluster
from rigs.sshd import poll_until

DEMO = [sys.executable, "-m", "dflash_console", "demo", "--headless"]


def folders() -> list[Path]:
    return [path for path in (state_dir() / "demo").glob("*") if path.is_dir()]


def engines(home: Path) -> list[int]:
    """Engines of demos under ``home``: their environment says where they live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = str(home).encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if mine and b"dflash_engine" in words:
                found.append(int(entry.name))
    return found


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Path]:
    yield isolated_home
    for pid in engines(isolated_home):
        os.kill(pid, signal.SIGKILL)


def spawn(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DEMO, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until_engines(child: subprocess.Popen[str], home: Path) -> None:
    poll_until(lambda: engines(home) or child.poll() is not None, deadline=60, what="an engine of the demo")
    assert child.poll() is None, child.communicate()


def test_snapshots_are_lines_and_a_broken_configuration_does_not_matter(home: Path) -> None:
    (home / ".config/dflash-console").mkdir(parents=True)
    (home / ".config/dflash-console/config.toml").write_text("[[[")
    done = subprocess.run(
        [*DEMO, "--for", "15", "--servers", "1", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    states = [json.loads(line)["servers"][0]["state"] for line in done.stdout.splitlines()]
    assert states[-1] == "ready"
    assert engines(home) == []
    assert folders() == []


def test_servers_that_are_not_ready_at_the_end_are_named(home: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--for", "0.01", "--servers", "2"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 5
    assert "chain-2 is" in done.stderr
    assert engines(home) == []
    assert folders() == []


@pytest.mark.parametrize("words", [["--servers", "0"], ["--servers", "9"], ["--for", "-1"], ["--for", "nan"]])
def test_impossible_wishes_are_bad_usage(words: list[str]) -> None:
    done = subprocess.run([*DEMO, *words, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2
    assert folders() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_comes_up_leaves_nothing(home: Path, number: signal.Signals) -> None:
    child = spawn("--for", "100", "--servers", "2")
    until_engines(child, home)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "were stopped and its folder removed" in err
    assert engines(home) == []
    assert folders() == []


def test_a_signal_before_anything_runs_leaves_no_folder(home: Path) -> None:
    child = spawn("--for", "100", "--servers", "2")
    poll_until(lambda: folders() or child.poll() is not None, deadline=60, what="the demo's folder")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert engines(home) == []
    assert folders() == []


def test_what_a_killed_demo_left_is_removed_by_the_next_ones(home: Path) -> None:
    killed = spawn("--for", "100", "--servers", "2")
    until_engines(killed, home)
    killed.kill()
    killed.communicate(timeout=60)
    left = set(engines(home))
    assert left
    assert folders()
    # Two at once: one of them cleans up, and neither trips over the other.
    both = [spawn("--for", "6", "--servers", "1") for _ in range(2)]
    for one in both:
        _, err = one.communicate(timeout=120)
        assert one.returncode in (0, 5), err
        assert "error" not in err
    assert engines(home) == []
    assert folders() == []


def test_the_number_of_a_dead_demo_may_be_our_own(home: Path) -> None:
    """In a container process numbers begin anew with each start."""
    folder = state_dir() / "demo" / str(os.getpid())
    folder.mkdir(parents=True)
    (state_dir() / "demo" / "1").mkdir()
    assert cluster.stale_roots() == [folder]


def test_only_one_cleans_up() -> None:
    with cluster.cleaning() as first, cluster.cleaning() as second:
        assert (first, second) == (True, False)


@contextmanager
def screens(home: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, bytearray]]:
    """The demo's screens in a terminal, with a server that runs: process, the terminal, what it showed."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, 100))
    child = subprocess.Popen(
        [sys.executable, "-m", "dflash_console", "demo", "--servers", "1", "--no-load"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(slave)
    shown = bytearray()
    reader = threading.Thread(target=_drain, args=(master, shown), daemon=True)
    reader.start()
    try:
        poll_until(lambda: engines(home) and b"\x1b[?1049h" in shown, deadline=60, what="screens and engine")
        yield child, master, shown
    finally:
        child.kill()
        child.wait()
        reader.join(10)


def _drain(master: int, shown: bytearray) -> None:
    while True:
        try:
            # Closing the terminal would not wake a read.
            if select.select([master], [], [], 0.1)[0]:
                shown += os.read(master, 65536)
        except (OSError, ValueError):
            return


def test_a_signal_at_the_screens_gives_the_terminal_back_and_stops_the_servers(home: Path) -> None:
    with screens(home) as (child, master, shown):
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 130
        poll_until(lambda: b"interrupted: the demo's servers were stopped" in shown, what="the last line")
        assert b"\x1b[?1049l" in shown, "the alternate screen was left"
        os.close(master)
    assert engines(home) == []
    assert folders() == []


def test_a_terminal_that_goes_away_without_a_signal_ends_the_screens(home: Path) -> None:
    with screens(home) as (child, master, _):
        os.close(master)
        assert child.wait(60) == 130
    assert engines(home) == []
    assert folders() == []
