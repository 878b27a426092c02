"""Host keys over a real sshd: unknown, changed, revoked, hashed, certified, and our own file."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dflash_backend.core.errors import RefusedError
from dflash_backend.core.paths import state_dir
from dflash_backend.core.states import LinkState
from dflash_backend.ssh.hostkeys import Verdict
from dflash_backend.ssh.pool import SshPool
from rigs.sshd import SSH_KEYGEN, Sshd, make_key

pytestmark = pytest.mark.sshd


@pytest.fixture
async def open_pool(sshd: Sshd) -> AsyncIterator[Callable[..., SshPool]]:
    """Makes pools that are closed at the end; by default with the host ``rig``."""
    pools: list[SshPool] = []

    def make(*servers: Sshd) -> SshPool:
        pool = SshPool({server.name: server.host_config() for server in servers or (sshd,)})
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        await pool.close()


async def refused(pool: SshPool, host: str = "rig") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await pool.link(host).run(["true"])
    return caught.value


async def test_an_unknown_key_is_shown_and_nothing_is_sent(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_text("")
    pool = open_pool()
    error = await refused(pool)
    assert sshd.fingerprint() in error.what
    assert "ssh-ed25519" in error.what
    assert "ssh-keygen -lf" in error.next_step
    assert "hosts trust rig" in error.next_step
    status = pool.link("rig").status
    assert (status.state, status.retry_at) == (LinkState.KEY_UNKNOWN, None)
    assert "publickey" not in sshd.log.read_text()


async def test_a_trusted_key_is_written_to_our_file_alone(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_text("# mine\n")
    pool = open_pool()
    await refused(pool)
    (report,) = await pool.key_reports("rig")
    assert (report.verdict, report.fingerprint) == (Verdict.UNKNOWN, sshd.fingerprint())
    await pool.trust(report)
    assert (await pool.link("rig").run(["echo", "in"])).stdout == b"in\n"
    own = state_dir() / "known_hosts"
    assert own.read_text() == sshd.known_hosts_line()
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert sshd.known_hosts.read_text() == "# mine\n"
    # OpenSSH agrees that this is a line of a known_hosts file for this host.
    assert SSH_KEYGEN is not None
    found = subprocess.run(
        [SSH_KEYGEN, "-F", f"[127.0.0.1]:{sshd.port}", "-f", str(own)], capture_output=True
    )
    assert found.returncode == 0


async def test_a_changed_key_is_refused_with_both_fingerprints(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    old = sshd.fingerprint()
    sshd.restart(new_host_key=True)
    pool = open_pool()
    error = await refused(pool)
    assert old in error.what
    assert sshd.fingerprint() in error.what
    assert "CHANGED" in error.what
    assert f"{sshd.known_hosts}:1" in error.what
    assert pool.link("rig").status.state is LinkState.KEY_CHANGED
    assert "publickey" not in sshd.log.read_text()


async def test_a_changed_key_is_trusted_only_on_explicit_request(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    old_key = sshd.host_key.read_bytes(), sshd.host_key.with_name("host_key.pub").read_bytes()
    sshd.restart(new_host_key=True)
    pool = open_pool()
    (report,) = await pool.key_reports("rig")
    assert report.verdict is Verdict.CHANGED
    with pytest.raises(RefusedError, match="CHANGED"):
        await pool.trust(report)
    assert not (state_dir() / "known_hosts").exists()
    await pool.trust(report, replace=True)
    assert (await pool.link("rig").run(["true"])).exit_status == 0
    # The old key, still in the user's file, is not good any more.
    await pool.close()
    sshd.host_key.write_bytes(old_key[0])
    sshd.host_key.with_name("host_key.pub").write_bytes(old_key[1])
    sshd.restart()
    error = await refused(open_pool())
    assert "CHANGED" in error.what


async def test_another_type_of_key_than_the_known_one_counts_as_changed(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    old = sshd.fingerprint()
    sshd.restart(new_host_key=True, key_kind="rsa")
    error = await refused(open_pool())
    assert "CHANGED" in error.what
    assert old in error.what
    assert sshd.fingerprint() in error.what


async def test_forgetting_makes_the_key_unknown_again(sshd: Sshd, open_pool: Callable[..., SshPool]) -> None:
    sshd.known_hosts.write_text("")
    pool = open_pool()
    (report,) = await pool.key_reports("rig")
    await pool.trust(report)
    await pool.link("rig").run(["true"])
    lines = await pool.forget("rig")
    assert lines[0].startswith("removed 1 key of ")
    await refused(open_pool())


async def test_forgetting_says_where_the_key_is_still_listed(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    lines = await open_pool().forget("rig")
    assert lines[0].startswith("removed 0 keys")
    assert lines[1] == f"still trusted: {sshd.known_hosts}:1"


@pytest.mark.parametrize(
    "bad",
    [
        "one-word",
        "two words",
        "host ssh-ed25519 not-base64",
        "@unknown-marker host ssh-ed25519 AAAA",
        "|1|broken|hash ssh-ed25519 AAAA",
        "|2|x ssh-ed25519 AAAA",
        ",, ssh-ed25519 AAAA",
        "* not-a-key-type AAAA",
        "\udcff\udcfe \x00 junk",
    ],
)
async def test_a_malformed_line_blocks_nobody(
    bad: str, sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_bytes(
        (bad + "\n").encode("utf-8", "surrogateescape") + sshd.known_hosts.read_bytes()
    )
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0


async def test_an_empty_name_trusts_nobody(sshd: Sshd, open_pool: Callable[..., SshPool]) -> None:
    sshd.known_hosts.write_text(f"other,,more {sshd.public_key()}\n")
    pool = open_pool()
    await refused(pool)
    (report,) = await pool.key_reports("rig")
    assert "skipped" in report.notes[0]


async def test_hashed_entries_count(sshd: Sshd, open_pool: Callable[..., SshPool]) -> None:
    assert SSH_KEYGEN is not None
    subprocess.run([SSH_KEYGEN, "-q", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True)
    assert sshd.known_hosts.read_text().startswith("|1|")
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0
    sshd.restart(new_host_key=True)
    assert "CHANGED" in (await refused(open_pool())).what


async def test_an_entry_without_the_port_counts_when_the_key_is_the_same(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_text(sshd.known_hosts_line("127.0.0.1"))
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0


async def test_another_key_without_the_port_is_not_called_a_change(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    # A container's sshd on another port of the same machine is a host of its own.
    other = make_key(tmp_path / "other", "rsa").with_name("other.pub").read_text()
    sshd.known_hosts.write_text(f"127.0.0.1 {other}")
    pool = open_pool()
    error = await refused(pool)
    assert "not known yet" in error.what
    assert pool.link("rig").status.state is LinkState.KEY_UNKNOWN


async def test_a_revoked_key_is_refused_even_where_it_is_also_trusted(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    with sshd.known_hosts.open("a") as stream:
        stream.write(f"@revoked * {sshd.public_key()}\n")
    pool = open_pool()
    error = await refused(pool)
    assert "@revoked" in error.what
    (report,) = await pool.key_reports("rig")
    with pytest.raises(RefusedError, match="revoked"):
        await pool.trust(report, replace=True)


def certify(sshd: Sshd, authority: Path) -> None:
    assert SSH_KEYGEN is not None
    subprocess.run(
        [
            SSH_KEYGEN,
            "-q",
            "-s",
            str(authority),
            "-I",
            "rig",
            "-h",
            "-n",
            "127.0.0.1",
            f"{sshd.host_key}.pub",
        ],
        check=True,
        capture_output=True,
    )
    sshd.options["HostCertificate"] = f"{sshd.host_key}-cert.pub"
    sshd.restart()


async def test_a_certificate_authority_counts(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    authority = make_key(tmp_path / "authority")
    certify(sshd, authority)
    public = authority.with_name("authority.pub").read_text()
    sshd.known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {public}")
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0


async def test_a_certificate_of_a_stranger_is_an_unknown_key(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    certify(sshd, make_key(tmp_path / "authority"))
    sshd.known_hosts.write_text("")
    pool = open_pool()
    error = await refused(pool)
    assert sshd.fingerprint() in error.what
    (report,) = await pool.key_reports("rig")
    await pool.trust(report)
    assert (await pool.link("rig").run(["true"])).exit_status == 0


@pytest.mark.parametrize(
    "weakening",
    [
        "UserKnownHostsFile none",
        "UserKnownHostsFile /dev/null",
        "GlobalKnownHostsFile none",
        "StrictHostKeyChecking no",
        "StrictHostKeyChecking accept-new",
        "NoHostAuthenticationForLocalhost yes",
        "CheckHostIP no",
        "VerifyHostKeyDNS yes",
    ],
)
async def test_the_ssh_configuration_cannot_switch_the_check_off(
    weakening: str, sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_text("")
    sshd.ssh_config.write_text(f"{weakening}\n" + sshd.ssh_config.read_text())
    assert "not known yet" in (await refused(open_pool())).what


async def test_files_that_the_ssh_configuration_names_are_read_too(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.rename(sshd.client_home / "elsewhere")
    sshd.ssh_config.write_text("UserKnownHostsFile ~/elsewhere\n" + sshd.ssh_config.read_text())
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0


async def test_a_host_key_alias_is_the_name_that_counts(
    sshd: Sshd, open_pool: Callable[..., SshPool]
) -> None:
    sshd.known_hosts.write_text(sshd.known_hosts_line("gpu-box"))
    sshd.ssh_config.write_text("HostKeyAlias gpu-box\n" + sshd.ssh_config.read_text())
    assert (await open_pool().link("rig").run(["true"])).exit_status == 0
    sshd.restart(new_host_key=True)
    assert "gpu-box" in (await refused(open_pool())).what


async def test_each_hop_of_a_jump_is_checked(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    with Sshd(tmp_path / "inner", name="inner", jump=sshd, trusted=False) as inner:
        pool = open_pool(sshd, inner)
        error = await refused(pool, "inner")
        assert inner.fingerprint() in error.what
        assert "not known yet" in error.what
        first, second = await pool.key_reports("inner")
        assert (first.hop, first.verdict) == ("rig", Verdict.TRUSTED)
        assert (second.hop, second.verdict) == ("inner", Verdict.UNKNOWN)
        await pool.trust(second)
        assert (await pool.link("inner").run(["echo", "deep"])).stdout == b"deep\n"
        assert inner.sessions() == 0 or inner.log.read_text().count("Starting session") >= 1


async def test_an_unknown_jump_host_is_refused_before_the_host_behind_it(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    with Sshd(tmp_path / "inner", name="inner", jump=sshd) as inner:
        sshd.known_hosts.write_text(inner.known_hosts_line())
        pool = open_pool(sshd, inner)
        error = await refused(pool, "inner")
        assert "hop rig" in error.where
        assert sshd.fingerprint() in error.what
        (report,) = await pool.key_reports("inner")
        assert (report.hop, report.verdict) == ("rig", Verdict.UNKNOWN)
        await pool.trust(report)
        assert (await pool.link("inner").run(["true"])).exit_status == 0


async def test_a_changed_key_behind_a_jump_is_refused(
    sshd: Sshd, open_pool: Callable[..., SshPool], tmp_path: Path
) -> None:
    with Sshd(tmp_path / "inner", name="inner", jump=sshd) as inner:
        inner.restart(new_host_key=True)
        pool = open_pool(sshd, inner)
        assert "CHANGED" in (await refused(pool, "inner")).what
        # No connection to the jump host stays behind.
        assert (await pool.link("rig").run(["true"])).exit_status == 0
