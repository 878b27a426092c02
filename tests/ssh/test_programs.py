"""Programs sent to the host's Python over stdin: answers, errors, noise, unusual hosts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import (
    ConfigError,
    FailedError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from dflash_backend.core.text import REDACTED
from dflash_backend.ssh.pool import SshPool
from dflash_backend.ssh.programs import JsonLines, Preamble, decode, program_argv, program_input
from dflash_backend.ssh.session import SshLink
from rigs.sshd import Sshd

pytestmark = pytest.mark.sshd


async def until(condition: Callable[[], object], deadline: float = 20.0) -> None:
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_request_and_answer(link: SshLink, programs: Any) -> None:
    programs.write(
        "hello", "def main(request, emit, stdin):\n    return {'got': request, 'rest': len(stdin.read())}\n"
    )
    request = {"text": "naïve \n'\"\\", "n": [1, 2.5, None, True]}
    assert await link.run_program("hello", request) == {"got": request, "rest": 0}


async def test_nothing_is_left_on_the_host(link: SshLink, programs: Any, sshd: Sshd) -> None:
    programs.write(
        "hello", "import os\ndef main(request, emit, stdin):\n    return os.listdir(os.environ['HOME'])\n"
    )
    assert await link.run_program("hello", {}) == []
    assert list(sshd.remote_home.iterdir()) == []


async def test_the_request_is_on_no_command_line(link: SshLink, programs: Any) -> None:
    programs.write(
        "look",
        "def main(request, emit, stdin):\n    return open('/proc/self/cmdline', 'rb').read().decode()\n",
    )
    command = await link.run_program("look", {"token": "s3cr3t-value"})
    assert isinstance(command, str)
    assert "s3cr3t-value" not in command
    assert "look" in command


async def test_an_error_of_the_program_becomes_ours(link: SshLink, programs: Any) -> None:
    programs.write(
        "fail",
        """
        class No(Exception):
            def __init__(self, what, kind, next):
                super().__init__(what)
                self.kind, self.next = kind, next
        def main(request, emit, stdin):
            what = "port %d taken by \\x1b]0;evil\\x07 s3cr3t" % request["port"]
            raise No(what, request["kind"], "take another")
        """,
    )
    for kind, expected in (
        ("failed", FailedError),
        ("refused", RefusedError),
        ("usage", UsageError),
        ("config", ConfigError),
        ("invented", FailedError),
    ):
        with pytest.raises(expected) as caught:
            await link.run_program("fail", {"port": 1, "kind": kind}, secrets=["s3cr3t"])
        assert type(caught.value) is expected
        assert caught.value.what == f"port 1 taken by  {REDACTED}"
        assert caught.value.next_step == "take another"
        assert caught.value.where == "host rig"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("return float('nan')", "ValueError"),
        ("return object()", "TypeError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("import os; os._exit(5)", "gave no answer"),
        ("import os; os.kill(os.getpid(), 9)", "gave no answer"),
    ],
)
async def test_a_program_that_breaks_is_a_plain_failure(
    body: str, said: str, link: SshLink, programs: Any
) -> None:
    programs.write("broken", f"def main(request, emit, stdin):\n    {body}\n")
    with pytest.raises(FailedError, match=said):
        await link.run_program("broken", {})


async def test_a_program_with_a_syntax_error(link: SshLink, programs: Any) -> None:
    programs.write("bad", "def main(:\n")
    with pytest.raises((FailedError, SyntaxError)):
        await link.run_program("bad", {})


async def test_prints_and_children_do_not_disturb_the_answer(link: SshLink, programs: Any) -> None:
    programs.write(
        "noisy",
        """
        import subprocess, sys
        print("at import")
        def main(request, emit, stdin):
            print("{'ok': 1}")
            sys.stdout.flush()
            subprocess.run(["echo", '{"ok": 2}'])
            return 3
        """,
    )
    assert await link.run_program("noisy", {}) == 3


async def test_start_up_files_that_print_do_not_disturb_the_answer(
    link: SshLink, programs: Any, sshd: Sshd
) -> None:
    programs.write("hello", "def main(request, emit, stdin):\n    return 'clean'\n")
    # bash reads .bashrc for commands over ssh.
    sshd.remote_home.joinpath(".bashrc").write_text(
        'printf "Hello \\033[1mGPU\\n{\\"ok\\": \\"wrong\\"}\\nno newline at the end"; echo complaint >&2\n'
    )
    assert await link.run_program("hello", {}) == "clean"


async def test_endless_noise_is_given_up(link: SshLink, programs: Any, sshd: Sshd) -> None:
    programs.write("hello", "def main(request, emit, stdin):\n    return 'clean'\n")
    sshd.remote_home.joinpath(".bashrc").write_text("yes noise\n")
    with pytest.raises(FailedError, match="before the program started"):
        await link.run_program("hello", {})
    await until(lambda: not sshd.commands())


async def test_a_large_answer_and_a_large_request(link: SshLink, programs: Any) -> None:
    programs.write("double", "def main(request, emit, stdin):\n    return request * 2\n")
    text = "0123456789" * 200_000
    assert await link.run_program("double", text) == text * 2


async def test_hostile_text_in_an_answer_is_cleaned(link: SshLink, programs: Any) -> None:
    programs.write(
        "evil",
        "def main(request, emit, stdin):\n"
        "    return {'a\\x1b[2J': ['\\x1b]52;c;x\\x07b', '\\u202ec', '\\udcff']}\n",
    )
    assert await link.run_program("evil", {}) == {"a": ["b", "c", ""]}


async def test_a_stream_yields_messages_as_they_come(link: SshLink, programs: Any, sshd: Sshd) -> None:
    programs.write(
        "parrot",
        """
        from dflash_backend.hostside import _voice
        import _voice as again
        def main(request, emit, stdin):
            emit({"ready": request})
            for line in stdin:
                emit(_voice.say(again.say(line.decode().strip())))
            return "bye"
        """,
    )
    programs.write("_voice", "from _tone import high\ndef say(text):\n    return high(text)\n")
    programs.write("_tone", "def high(text):\n    return text.upper() + '!'\n")
    async with link.stream_program("parrot", [1]) as process:
        messages = process.messages()
        assert await anext(messages) == {"ready": [1]}
        await process.write(b"hello\n")
        assert await anext(messages) == "HELLO!!"
        await process.close_stdin()
        assert [message async for message in messages] == [{"ok": "bye"}]
        assert await process.wait() == 0


async def test_leaving_a_stream_ends_the_program(link: SshLink, programs: Any, sshd: Sshd) -> None:
    programs.write(
        "deaf",
        """
        import signal, time
        def main(request, emit, stdin):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            emit("up")
            time.sleep(1000)
        """,
    )
    async with link.stream_program("deaf", {}) as process:
        assert await anext(process.messages()) == "up"
    await until(lambda: not sshd.commands())


async def test_an_error_in_a_stream_is_raised(link: SshLink, programs: Any) -> None:
    programs.write("early", "def main(request, emit, stdin):\n    emit(1)\n    raise ValueError('no more')\n")
    async with link.stream_program("early", {}) as process:
        messages = process.messages()
        assert await anext(messages) == 1
        with pytest.raises(FailedError, match="ValueError: no more"):
            await anext(messages)


async def test_a_lost_connection_ends_a_stream_with_an_error(
    link: SshLink, programs: Any, sshd: Sshd
) -> None:
    programs.write("wait", "def main(request, emit, stdin):\n    emit(1)\n    stdin.read()\n")
    async with link.stream_program("wait", {}) as process:
        messages = process.messages()
        await anext(messages)
        sshd.drop_connections()
        with pytest.raises(UnreachableError):
            await anext(messages)


@pytest.mark.parametrize("python", ["/nowhere/bin/python", "no-such-python", "~/no-venv"])
async def test_a_missing_interpreter_is_named(python: str, sshd: Sshd, programs: Any) -> None:
    programs.write("hello", "def main(request, emit, stdin):\n    return 1\n")
    pool = SshPool({"rig": sshd.host_config(python=python)})
    link = pool.link("rig")
    try:
        with pytest.raises(ConfigError, match="no Python interpreter") as caught:
            await link.run_program("hello", {})
        assert python in caught.value.what
        assert "venv folder" in caught.value.next_step
        with pytest.raises(ConfigError, match="no Python interpreter"):
            async with link.stream_program("hello", {}):
                pass
    finally:
        await pool.close()


async def test_interpreter_venv_folder_and_tilde(sshd: Sshd, programs: Any) -> None:
    programs.write("which", "import sys\ndef main(request, emit, stdin):\n    return sys.argv[0]\n")
    venv = sshd.remote_home / "my venv"
    (venv / "bin").mkdir(parents=True)
    script = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    (venv / "bin" / "python").write_text(script)
    (venv / "bin" / "python").chmod(0o755)
    for python in (
        sys.executable,
        str(venv),
        f"{venv}/bin/python",
        "~/my venv",
        "~/my venv/bin/python",
        None,
    ):
        pool = SshPool({"rig": sshd.host_config(python=python)})
        assert await pool.link("rig").run_program("which", {}) == "-c"
        await pool.close()


@pytest.mark.parametrize(
    ("script", "expected", "said"),
    [
        ("exit 98", ConfigError, "older than 3.8"),
        (
            "echo 'libpython3.so: cannot open shared object' >&2; exit 127",
            ConfigError,
            "no Python interpreter",
        ),
        ("echo 'Illegal instruction' >&2; exit 132", FailedError, "Illegal instruction"),
        ("exit 0", FailedError, "did not start"),
    ],
)
async def test_an_interpreter_that_does_not_work(
    script: str, expected: type[Exception], said: str, sshd: Sshd, programs: Any
) -> None:
    programs.write("hello", "def main(request, emit, stdin):\n    return 1\n")
    fake = sshd.remote_home / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    pool = SshPool({"rig": sshd.host_config(python=str(fake))})
    try:
        with pytest.raises(expected, match=said):
            await pool.link("rig").run_program("hello", {})
    finally:
        await pool.close()


@pytest.mark.parametrize("name", ["no_such_program", "../core/text", "", "a.b"])
async def test_only_programs_of_ours_are_sent(name: str, link: SshLink) -> None:
    with pytest.raises(UsageError, match="no host program"):
        await link.run_program(name, {})


def test_shipped_programs_start_on_every_python_here() -> None:
    """Everything in hostside compiles for 3.8 and answers when run as the host would run it."""
    folder = Path(__file__).parents[2] / "backend" / "dflash_backend" / "hostside"
    for file in folder.glob("*.py"):
        compile(file.read_text(), str(file), "exec", dont_inherit=True)
        subprocess.run(
            [sys.executable, "-c", "import ast,sys;ast.parse(sys.stdin.read(),feature_version=(3,8))"],
            input=file.read_bytes(),
            check=True,
        )


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_the_prelude_runs_on_other_pythons(version: str, programs: Any) -> None:
    found = [shutil.which(f"python{version}")]
    found += map(str, Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob(f"versions/{version}.*/bin/python"))
    works = [p for p in found if p and subprocess.run([p, "-V"], capture_output=True).returncode == 0]
    if not works:
        pytest.skip(f"python{version} is not installed")
    python = works[0]
    programs.write("hello", "def main(request, emit, stdin):\n    return request\n")
    stdin, nonce = program_input("hello", {"a": 1})
    done = subprocess.run(
        program_argv("hello", python), input=stdin, capture_output=True, env=dict(os.environ)
    )
    assert JsonLines().feed(Preamble(nonce).feed(done.stdout)) == [{"ok": {"a": 1}}], done.stderr


@given(st.lists(st.binary(min_size=1, max_size=40)), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(noise: list[bytes], data: st.DataObject) -> None:
    nonce = b"dflash-0123456789abcdef"
    stream = b"".join(noise) + b"\n" + nonce + b'\n{"a":1}\n\n[2]\n"x"\n{"unfinished"'
    preamble, lines = Preamble(nonce), JsonLines()
    found: list[object] = []
    while stream:
        size = data.draw(st.integers(1, 30))
        found += lines.feed(preamble.feed(stream[:size]))
        stream = stream[size:]
    assert found == [{"a": 1}, [2], "x"]


@pytest.mark.parametrize("line", [b"{", b"nonsense", b"\xff\xfe", b"[" * 200_000, b"1" * 10_000, b"'single'"])
def test_what_is_not_json_is_a_plain_failure(line: bytes) -> None:
    with pytest.raises(FailedError):
        decode(line)


def test_numbers_that_json_does_not_have_are_missing() -> None:
    assert decode(b"[NaN, Infinity, -Infinity, 1]") == [None, None, None, 1]
