"""Quoting: what is given as a list arrives as that list, whatever the login shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_backend.core.errors import UsageError
from dflash_backend.ssh.commands import MAX_COMMAND, shell_command
from dflash_backend.ssh.session import SshLink

SHELLS = ("sh", "dash", "bash", "zsh", "fish", "tcsh", "mksh", "ksh")

AWKWARD = (
    "", " ", "'", '"', "\\", "\\'", "'\\''", "!", "!!", "a!b", "$HOME", "$(id)", "`id`", "~", "~root", "=ls",
    "%self", "^a^b", "*", "?", "[a]", "{a,b}", "(", ";", "&", "|", ">f", "#", "\n", "a\n", "\t", "\r", "\x01",
    "\x1b[2J", "-n", "--", "%s", "\\0101",
    "日本", "\u202e", "\udcff",
)  # fmt: skip

# Everything that can be an argument: any character but NUL, and single bytes that are not UTF-8.
words = st.text(
    st.one_of(
        st.sampled_from("'\"\\!$`~=%^*?[]{}()<>|&;# \n\t\r-"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        st.sampled_from("\udc80\udcfe\udcff"),
    ),
    max_size=60,
)


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_awkward_words_on(shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    command = shell_command(["printf", "%s|", *AWKWARD])
    done = subprocess.run([path, "-c", command], capture_output=True, check=True)
    assert done.stdout == b"".join(raw(word) + b"|" for word in AWKWARD)


@pytest.mark.sshd
async def test_hostile_words_round_trip_through_a_remote_printf(link: SshLink) -> None:
    failures: list[list[str]] = []
    batches: list[list[str]] = []

    @given(st.lists(words, min_size=1, max_size=20))
    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def collect(batch: list[str]) -> None:
        batches.append(batch)

    collect()
    for batch in batches:
        done = await link.run(["printf", "%s\\0", *batch])
        if done.stdout != b"".join(raw(word) + b"\0" for word in batch):
            failures.append(batch)
    assert not failures


@pytest.mark.sshd
async def test_environment_values_arrive_as_they_are(link: SshLink) -> None:
    for word in AWKWARD:
        command = shell_command(["sh", "-c", 'printf %s "$VALUE"'], env={"VALUE": word})
        done = await link.run(["sh", "-c", command])
        assert done.stdout == raw(word)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A;rm", "Ä", "A\n"])
def test_a_bad_variable_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        shell_command(["true"], env={name: "x"})


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], ["cat", "x" * (MAX_COMMAND + 1)]])
def test_what_cannot_be_a_command_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        shell_command(argv)


def test_a_plain_command_stays_readable() -> None:
    assert (
        shell_command(["nvidia-smi", "--query-gpu=name", "a b"]) == "exec nvidia-smi '--query-gpu=name' 'a b'"
    )
