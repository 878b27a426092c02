"""The console in a real terminal: nothing that data says is obeyed by the terminal."""

from __future__ import annotations

import base64
import re
import sys
import time
from pathlib import Path

import pytest

from rigs.pty_console import PtyProgram

APP = Path(__file__).with_name("pty_app.py")
POINTER = re.compile(rb"\x1b\]22;[a-z-]+\x07")
"""The one OSC that Textual itself sends while it paints: the shape of the mouse pointer."""


@pytest.mark.parametrize("how", ["clean", "raw"])
def test_no_sequence_of_a_hostile_log_reaches_the_terminal(how: str, tmp_path: Path) -> None:
    with PtyProgram([sys.executable, str(APP), how, str(tmp_path)], columns=100, rows=30) as console:
        console.read_until(lambda out: b"needs attention" in out and b"kimi-a" in out, "the fleet")
        console.send(b":kimi-a\r")
        console.read_until(lambda out: b"MARK 39" in out, "the server's log")
        console.send(b"w")
        console.read_until(lambda out: b"wrapped" in out, "wrapped log")
        console.send(b"p")
        console.read_until(lambda out: b"sglang.launch_server" in out, "the plan")
        console.send(b"\x10")  # ctrl+p
        console.read_until(lambda out: b"profiles: apply" in out, "the palette")
        console.send(b"\x1b")
        time.sleep(0.3)  # A lone escape is told from a sequence by the time that follows it.
        console.send(b"?")
        console.read_until(lambda out: b"esc closes" in out, "help")
        before = bytes(console.output)
        # Every other OSC, and every DCS, would come from the data.
        assert b"\x1b]" not in POINTER.sub(b"", before)
        assert b"\x1bP" not in before
        assert not re.search(rb"\xc2[\x80-\x9f]", before)
        assert b"\xe2\x80\xae" not in before  # the bidi override
        assert before.count(b"\x1b[2J") <= 1
        console.send(b"?")
        time.sleep(0.3)
        console.send(b"\x1b")
        time.sleep(0.3)
        console.send(b"y")
        console.read_until(lambda out: b"\x1b]52;c;" in out[len(before) :], "our own copy")
        copied = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", bytes(console.output[len(before) :]))
        assert copied is not None
        text = base64.b64decode(copied[1]).decode()
        assert "MARK" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        console.send(b"q")
        assert console.wait() == 0
        rest = bytes(console.output[len(before) :])
        assert POINTER.sub(b"", rest).count(b"\x1b]") == 1
        assert b"owned" not in rest.split(b"\x1b[?1049l")[-1]


def test_the_terminal_is_given_back_and_nothing_is_left_running(tmp_path: Path) -> None:
    with PtyProgram([sys.executable, str(APP), "clean", str(tmp_path)]) as console:
        console.read_until(lambda out: b"needs attention" in out, "the fleet")
        console.send(b"\x11")  # ctrl+q
        assert console.wait() == 0
        out = bytes(console.output)
        assert out.rindex(b"\x1b[?1049l") > out.index(b"\x1b[?1049h")
        assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")


def test_a_terminal_without_colour_and_unicode_gets_ascii(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv=['x', 'clean', sys.argv[1]]\n"
        f"sys.path.insert(0, {str(APP.parent)!r})\n"
        "import pty_app, dataclasses, dflash_console.tui.app as app\n"
        "start = app.run\n"
        "pty_app.run = lambda services: start(dataclasses.replace(services, ascii=True))\n"
        "raise SystemExit(pty_app.main())"
    )
    env = {"NO_COLOR": "1", "TERM": "xterm"}
    with PtyProgram([sys.executable, "-c", code, str(tmp_path)], env=env) as console:
        console.read_until(lambda out: b"needs attention" in out, "the fleet")
        console.send(b":kimi-a\r")
        console.read_until(lambda out: b"MARK 39" in out, "the log")
        console.send(b"q")
        assert console.wait() == 0
        assert bytes(console.output).isascii()
        assert not re.search(rb"\x1b\[[0-9;]*(?:38|48);[25];", bytes(console.output))
