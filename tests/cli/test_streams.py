"""Standard streams in every state that a caller may leave them in."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_backend.core.errors import FailedError
from dflash_console.cli import main as main_module
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.output import Output

MAIN = [sys.executable, "-m", "dflash_console"]
FULL = Path("/dev/full")


def shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = script.replace("CONSOLE", f"{sys.executable} -m dflash_console")
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", ["info", "info --json", "nosuch --json"])
def test_a_full_disk_behind_standard_output_is_an_exit_code_and_a_line(words: str) -> None:
    done = shell(f"CONSOLE {words} >/dev/full")
    assert done.returncode == (2 if "nosuch" in words else 5)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("dflash-console: ")


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", ">&- 2>&-", "0<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(closed: str) -> None:
    assert shell(f"CONSOLE info {closed}").returncode == 0
    assert shell(f"CONSOLE nosuch {closed}").returncode == 2
    assert shell(f"CONSOLE info --json {closed}").stderr == ""


def test_nothing_is_ever_written_into_a_file_that_got_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[hosts.a]\naddress = "a"\n')
    shell(f"CONSOLE --config {config} hosts list >&- 2>&-")
    assert config.read_text() == '[hosts.a]\naddress = "a"\n'


def test_standard_error_that_cannot_be_written_changes_no_exit_code() -> None:
    if FULL.exists():
        assert shell("CONSOLE nosuch 2>/dev/full").returncode == 2


def test_a_poor_locale_gets_plain_characters() -> None:
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("CONSOLE profiles diff kimi-k26-chain kimi-k26-ddtree8", **poor)
    assert done.returncode == 1
    assert done.stdout.isascii()
    assert "?" not in done.stdout


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise OSError


def test_an_action_goes_on_when_its_reader_has_gone() -> None:
    out = Output(as_json=True, stdout=Gone(), stderr=io.StringIO())
    out.must_not_fail = True
    out.event({"event": "step"})
    out.document({})
    out.line("x")
    out.table(["a"], [["b"]])
    out.flush()
    out.must_not_fail = False
    with pytest.raises(BrokenPipeError):
        out.event({"event": "step"})


def test_a_note_never_fails() -> None:
    out = Output(stdout=io.StringIO(), stderr=Gone())
    out.note("x")
    out.progress("x")
    out.error(FailedError("x"))


def test_what_is_logged_goes_to_the_file_and_not_between_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], isolated_home: Path
) -> None:
    import logging

    async def work(args: object, context: Context) -> int:
        logging.getLogger("asyncssh").warning("hostile \x1b[31m --api-key hf_abcdefghijklmnopqrstuvwx")
        context.out.document({})
        return 0

    monkeypatch.setattr(main_module, "_load", lambda name: Leaf(help="h", run=work))
    assert main_module.main(["info", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"schema": 1}
    assert said.err == ""
    path = isolated_home / ".local/state/dflash-console/console.log"
    assert "hostile" in path.read_text()
    assert "\x1b" not in path.read_text()
    assert "hf_abc" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
