"""Commands, programs and ports over a real sshd."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dflash_backend.core.states import LinkState
from dflash_backend.ssh.session import SshLink

pytestmark = pytest.mark.sshd


async def test_a_command_gives_status_and_both_outputs(link: SshLink) -> None:
    done = await link.run(["sh", "-c", "cat; echo to-stderr >&2; exit 3"], stdin=b"\xff\x00 in")
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"\xff\x00 in", b"to-stderr\n")
    assert link.status.state is LinkState.UP


async def test_a_program_answers(link: SshLink, programs: Any) -> None:
    programs.write("hello", "def main(request, emit, stdin):\n    return request['x'] * 2\n")
    assert await link.run_program("hello", {"x": 21}) == 42


async def test_a_streaming_program_talks_both_ways(link: SshLink, programs: Any) -> None:
    programs.write(
        "parrot",
        """
        from dflash_backend.hostside import _voice
        def main(request, emit, stdin):
            emit({"ready": request})
            for line in stdin:
                emit(_voice.say(line.decode().strip()))
            return "bye"
        """,
    )
    programs.write("_voice", "def say(text):\n    return text.upper()\n")
    async with link.stream_program("parrot", [1]) as process:
        messages = process.messages()
        assert await anext(messages) == {"ready": [1]}
        await process.write(b"hello\n")
        assert await anext(messages) == "HELLO"
        await process.close_stdin()
        assert [message async for message in messages] == [{"ok": "bye"}]
        assert await process.wait() == 0


async def test_a_forward_leads_to_the_host(link: SshLink) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = await link.forward(server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    assert await reader.read() == b"hello\n"
    writer.close()
    server.close()
