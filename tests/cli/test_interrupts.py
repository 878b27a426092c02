"""Signals at a command: one orderly end, said, for Ctrl-C, SIGTERM and a lost terminal alike."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dflash_console.cli.interrupts import ENDING

SCRIPT = """
import asyncio, sys
from dflash_console.cli import main as m
from dflash_console.cli.command import Leaf

async def work(args, context):
    context.began("half of it was done")
    try:
        print("working", flush=True)
        await asyncio.sleep(600)
    finally:
        print("cleaning up", flush=True)
        await asyncio.shield(asyncio.sleep({cleaning}))
        print("clean", flush=True)

m._load = lambda name: Leaf(help="h", run=work)
sys.exit(m.main(["info"]))
"""


def spawn(cleaning: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(cleaning=cleaning)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    return child


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> signal.Signals:
    return request.param


def test_a_signal_cleans_up_and_says_what_is_left(number: signal.Signals) -> None:
    child = spawn(0.01)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == "cleaning up\nclean\n"
    assert err == "interrupted: half of it was done\n"


def test_an_impatient_second_signal_does_not_tear_the_cleaning_up(number: signal.Signals) -> None:
    child = spawn(1.0)
    assert child.stdout is not None
    child.send_signal(number)
    assert child.stdout.readline() == "cleaning up\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == "clean\n"
    assert err == f"{ENDING}\ninterrupted: half of it was done\n"


def test_the_third_signal_ends_it() -> None:
    child = spawn(600)
    assert child.stdout is not None
    assert child.stderr is not None
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "cleaning up\n"
    child.send_signal(signal.SIGTERM)
    assert child.stderr.readline() == f"{ENDING}\n"
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted: half of it was done\n" in err
    assert "Traceback" not in err


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    """``nohup`` and background jobs of a shell."""
    script = (
        "import signal, os\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from dflash_console.cli.interrupts import handled, run\n"
        "async def work():\n    os.kill(os.getpid(), signal.SIGHUP)\n    return 7\n"
        "with handled():\n    raise SystemExit(run(work(), print))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7


def test_a_command_that_does_not_wait_for_anything_ends_as_well(number: signal.Signals) -> None:
    script = (
        "import sys, time\nfrom dflash_console.cli import main as m\n"
        "from dflash_console.cli.command import Leaf\n"
        "def work(args, context):\n    print('working', flush=True)\n    time.sleep(600)\n"
        "m._load = lambda name: Leaf(help='h', run=work)\nsys.exit(m.main(['info']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "interrupted: nothing was changed\n")
