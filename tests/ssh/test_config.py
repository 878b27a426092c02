"""Addresses and chains of jumps as the user's ssh configuration says; no server needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.core.errors import ConfigError
from dflash_backend.core.inventory import HostConfig
from dflash_backend.ssh import config
from dflash_backend.ssh.config import Hop, parse_address, resolve


@pytest.fixture
def ssh_home(isolated_home: Path) -> Path:
    folder = isolated_home / ".ssh"
    folder.mkdir(mode=0o700)
    return folder


def chain(address: str, **more: str) -> list[Hop]:
    # The system's own file is left out: these tests are about the user's.
    return list(resolve(HostConfig(name="h", address=address, **more), [Path.home() / ".ssh" / "config"]))


def ends(hops: list[Hop]) -> list[tuple[str, str, int]]:
    return [(hop.user, hop.host, hop.port) for hop in hops]


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("gpu", "gpu", None, None),
        ("gpu-1.example.org:2222", "gpu-1.example.org", None, 2222),
        ("me@gpu", "gpu", "me", None),
        ("me@10.0.0.1:22", "10.0.0.1", "me", 22),
        ("[::1]:2200", "::1", None, 2200),
        ("me@[fe80::1%eth0]:22", "fe80::1%eth0", "me", 22),
        ("[2001:db8::1]", "2001:db8::1", None, None),
        ("2001:db8::1", "2001:db8::1", None, None),
        ("ssh://me@gpu:2222/", "gpu", "me", 2222),
        (" gpu ", "gpu", None, None),
    ],
)
def test_addresses(text: str, host: str, user: str | None, port: int | None) -> None:
    address = parse_address(text)
    assert (address.host, address.user, address.port) == (host, user, port)


@pytest.mark.parametrize(
    "text",
    ["", " ", "@", "me@", "a b", "h:0", "h:65536", "h:x", "h:", "[::1", "-oProxyCommand=x", "a/b", "[h]:1"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text, where="hosts.toml:3")
    assert caught.value.where == "hosts.toml:3"
    assert caught.value.next_step


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_plain_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ConfigError:
        return
    assert address.host
    assert not address.host.startswith("-")
    assert not any(char.isspace() for char in address.host)


def test_an_alias_is_followed(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host gpu\n  HostName 10.1.2.3\n  Port 2222\n  User me\n")
    (hop,) = chain("gpu")
    assert (hop.label, hop.user, hop.host, hop.port) == ("gpu", "me", "10.1.2.3", 2222)
    assert hop.known_name == "[10.1.2.3]:2222"


def test_what_the_address_says_is_stronger_than_the_file(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host gpu\n  HostName 10.1.2.3\n  Port 2222\n  User me\n")
    (hop,) = chain("you@gpu:22")
    assert ends([hop]) == [("you", "10.1.2.3", 22)]
    assert hop.known_name == "10.1.2.3"


def test_match_and_include(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Include more/*\nMatch originalhost gpu\n  User matched\n")
    (ssh_home / "more").mkdir()
    (ssh_home / "more" / "a").write_text("Host gpu\n  HostName included\n")
    assert ends(chain("gpu")) == [("matched", "included", 22)]


def test_match_final(ssh_home: Path) -> None:
    (ssh_home / "config").write_text(
        "Host gpu\n  HostName real\n  User me\nMatch final host real\n  ProxyJump far\n"
    )
    assert [hop.host for hop in chain("gpu")] == ["far", "real"]


def test_a_list_of_jumps_is_in_order(ssh_home: Path) -> None:
    (ssh_home / "config").write_text(
        "Host gpu\n  ProxyJump a@first:1,[::1]:2,ssh://c@third:3\n"
        "Host first\n  HostName 1.1.1.1\nHost *\n  User me\n"
    )
    assert ends(chain("gpu")) == [("a", "1.1.1.1", 1), ("me", "::1", 2), ("c", "third", 3), ("me", "gpu", 22)]


def test_only_the_outermost_jump_follows_its_own(ssh_home: Path) -> None:
    (ssh_home / "config").write_text(
        "Host gpu\n  ProxyJump outer,inner\nHost inner\n  ProxyJump ignored\nHost outer\n  ProxyJump gate\n"
    )
    assert [hop.host for hop in chain("gpu")] == ["gate", "outer", "inner", "gpu"]


def test_a_jump_for_all_hosts_does_not_jump_to_itself(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host *\n  ProxyJump bastion\n")
    assert [hop.host for hop in chain("gpu")] == ["bastion", "gpu"]


def test_no_jump_where_the_file_says_none(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host gpu\n  ProxyJump none\nHost *\n  ProxyJump bastion\n")
    assert [hop.host for hop in chain("gpu")] == ["gpu"]


def test_jumps_in_a_circle_are_told(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(ConfigError, match="circle"):
        chain("a")


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("Match nonsense", 2),
        ("Port many", 2),
        ("HostName", 2),
        ('HostName "unfinished', 2),
        ("ServerAliveInterval soon", 2),
        ("IdentitiesOnly perhaps", 2),
    ],
)
def test_a_broken_line_is_named(line: str, number: int, ssh_home: Path) -> None:
    (ssh_home / "config").write_text(f"# comment\n{line}\nHost gpu\n")
    with pytest.raises(ConfigError) as caught:
        chain("gpu")
    assert caught.value.where == f"{ssh_home / 'config'}:{number}"
    assert caught.value.next_step


@pytest.mark.parametrize("line", ["ProxyJump h:x", "ProxyJump -x", "HostName %q"])
def test_a_value_that_cannot_be_used_is_a_plain_error(line: str, ssh_home: Path) -> None:
    (ssh_home / "config").write_text(f"Host gpu\n  {line}\n")
    with pytest.raises(ConfigError) as caught:
        chain("gpu")
    assert caught.value.where


def test_a_system_file_in_another_dialect_does_not_lock_the_user_out(
    ssh_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "etc" / "ssh_config"
    system.parent.mkdir()
    monkeypatch.setattr(config, "SYSTEM_CONFIG", system)
    (ssh_home / "config").write_text("Host gpu\n  HostName mine\n")
    system.write_text("Host gpu\n  HostName theirs\n  User shared\n")
    host = HostConfig(name="h", address="gpu")
    assert ends(list(resolve(host))) == [("shared", "mine", 22)]
    system.write_text("Match frobnicate yes\n  User shared\n")
    (hop,) = resolve(host)
    assert hop.host == "mine"
    (ssh_home / "config").write_text("Match frobnicate yes\n")
    with pytest.raises(ConfigError, match="frobnicate"):
        resolve(host)


def test_no_configuration_at_all(isolated_home: Path) -> None:
    (hop,) = resolve(HostConfig(name="h", address="me@gpu:2222"), [])
    assert (hop.user, hop.host, hop.port) == ("me", "gpu", 2222)
    assert hop.notes == ()


def test_forwarding_and_commands_of_the_file_are_off(ssh_home: Path) -> None:
    (ssh_home / "config").write_text(
        "ForwardAgent yes\nForwardX11Trusted yes\nRequestTTY force\nRemoteCommand rm\n"
    )
    (hop,) = chain("gpu")
    wanted = {"agent_forwarding": False, "x11_forwarding": False, "request_pty": False, "command": None}
    assert wanted.items() <= dict(hop.arguments).items()


def test_identity_files_that_are_not_there_are_noted(ssh_home: Path) -> None:
    (ssh_home / "config").write_text("IdentityFile ~/.ssh/gone\nIdentityFile ~/.ssh/junk\n")
    (ssh_home / "junk").write_text("not a key")
    (hop,) = chain("gpu")
    assert hop.arguments["client_keys"] == []
    assert "gone" in hop.notes[0]
    assert "junk" in hop.notes[1]
