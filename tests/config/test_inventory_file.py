# ruff: noqa: E501  (one case a line reads better)
"""The configuration file: what is wrong is said with file, line and the nearest valid name, all at once."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_backend.config.example import EXAMPLE
from dflash_backend.config.inventory import ConfigSchema, chosen_path, load_inventory, require_hosts
from dflash_backend.config.locate import KeyLines
from dflash_backend.config.toml import FileError, load_toml, parse_toml
from dflash_backend.core.errors import ConfigError

GOOD = """\
pinned = ["kimi", "ref-ar"]
[hosts.gpu1]
address = "root@10.1.2.200:2222"
python = "/root/venv"
env = { HF_HOME = "/data" }
[servers.a]
host = "gpu1"
port = 30000
profile = "ref-ar"
"""


def write(tmp_path, text, name="config.toml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def messages(path):
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert caught.value.exit_code == 2
    return "\n".join(caught.value.lines())


def test_a_good_file_becomes_an_inventory(tmp_path):
    inventory = load_inventory(write(tmp_path, GOOD))
    host, server = inventory.hosts["gpu1"], inventory.servers["a"]
    assert (host.address, host.python, dict(host.env)) == (
        "root@10.1.2.200:2222", "/root/venv", {"HF_HOME": "/data"},
    )  # fmt: skip
    assert (server.host, server.port, server.profile) == ("gpu1", 30000, "ref-ar")
    assert inventory.pinned == ("kimi", "ref-ar")
    assert not inventory.read_only


def test_the_example_is_valid(tmp_path):
    inventory = load_inventory(write(tmp_path, EXAMPLE))
    assert list(inventory.servers) == ["kimi"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[hosts.g]\naddress = "g"\nadress = "g"\n', 3, "unknown key 'adress' (did you mean 'address'?)"),
        ("red_only = true\n", 1, "unknown key 'red_only' (did you mean 'read_only'?)"),
        ("zzz = true\n", 1, "known: hosts, servers"),
        ('[hosts.g]\naddress = "g"\npython = 3\n', 3, "'hosts.g.python' must be a text in quotes"),
        ('read_only = "yes"\n', 1, "must be true or false, not 'yes'"),
        ('[hosts.g]\n\n[hosts.h]\naddress = "h"\n', 1, "the key 'address' is missing"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport="30000"\n', 5, "must be a whole number from 1 to 65535"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport=0\n', 5, "must be a whole number from 1 to 65535, not 0"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport=65536\n', 5, "not 65536"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport=true\n', 5, "not true"),
        ('[hosts.gpu1]\naddress="g"\n[servers.a]\nhost="gpu2"\nport=1\n', 4, "there is no host 'gpu2' (did you mean 'gpu1'?)"),
        ('[servers.a]\nhost="gpu2"\nport=1\n', 2, "no host is configured"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport=1\n[servers.b]\nhost="g"\nport=1\n', 8, "already that of server 'a'"),
        ('[hosts.g]\naddress="g"\n[hosts.h]\naddress="g"\n[servers.a]\nhost="g"\nport=1\n[servers.b]\nhost="h"\nport=1\n', 10, "already that of server 'a'"),
        ('[hosts.g]\naddress="g"\n[hosts.g]\naddress="h"\n', 3, "'hosts.g' is given twice (first on line 1)"),
        ('[hosts.g]\naddress="g"\naddress="h"\n', 3, "'hosts.g.address' is given twice (first on line 2)"),
        ('[hosts."a b"]\naddress="g"\n', 1, "'a b' cannot be the name of a host"),
        ('[hosts."../x"]\naddress="g"\n', 1, "cannot be the name of a host"),
        ('[hosts.g]\naddress="g; rm -rf /"\n', 2, "neither an alias"),
        ('[hosts.g]\naddress="-oProxyCommand=x"\n', 2, "neither an alias"),
        ('[hosts.g]\naddress="me@h:99999"\n', 2, "port 99999 is not between 1 and 65535"),
        ('[hosts.g]\naddress=""\n', 2, "a text in quotes that is not empty"),
        ('[hosts.g]\naddress="g"\nenv = { "A B" = "1" }\n', 3, "cannot be the name of an environment variable"),
        ('[hosts.g]\naddress="g"\n[hosts.g.env]\nHF_TOKEN = "abc"\n', 4, "looks like a secret"),
        ('[hosts.g]\naddress="g"\n[servers.a]\nhost="g"\nport=1\nprofile="../../etc"\n', 6, "cannot be the name of a profile"),
        ('pinned = ["a", "b",\n  "a"]\n', 2, "'a' is pinned twice"),
        ("pinned = [1]\n", 1, "must be a text"),
        ("hosts = 1\n", 1, "must be a table"),
        ("a = [1,\n2\n", None, "not valid TOML"),
        ("[hosts\n", 1, "not valid TOML"),
        ("a = 1979-05-27\n", 1, "unknown key 'a'"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_file_line_and_remedy(tmp_path, text, line, words):
    path = write(tmp_path, text)
    said = messages(path)
    assert f"{path}:{line}: " in said or (line is None and f"{path}: " in said), said
    assert words in said


def test_all_mistakes_are_reported_together(tmp_path):
    said = messages(write(tmp_path, "red_only = 1\ntheme = 2\n[hosts.g]\nport = 3\n[servers.a]\nhost = 1\n"))
    assert [int(line.split(":")[1]) for line in said.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_missing_default_file_is_an_empty_inventory_with_a_way_forward(isolated_home):
    inventory = load_inventory()
    assert inventory.hosts == {}
    with pytest.raises(ConfigError) as caught:
        require_hosts(inventory)
    assert "--example" in caught.value.next_step


def test_a_missing_named_file_is_an_error(tmp_path, monkeypatch):
    assert "there is no such configuration file" in messages(tmp_path / "none.toml")
    monkeypatch.setenv("DFLASH_CONSOLE_CONFIG", str(tmp_path / "other.toml"))
    assert "there is no such configuration file" in messages(None)


def test_the_option_wins_over_the_environment_and_that_over_the_default(tmp_path, monkeypatch, isolated_home):
    assert chosen_path() == (isolated_home / ".config/dflash-console/config.toml", False)
    monkeypatch.setenv("DFLASH_CONSOLE_CONFIG", "/env.toml")
    assert str(chosen_path()[0]) == "/env.toml"
    assert str(chosen_path("/option.toml")[0]) == "/option.toml"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xef\xbb\xbf" + GOOD.encode(), None),
        (GOOD.replace("\n", "\r\n").encode(), None),
        (b"", None),
        (b"# caf\xe9\n", ":1: is not UTF-8"),
        (GOOD.encode() + b"x = '\xff'\n", ":10: is not UTF-8"),
        (b"\x00\x01", "not valid TOML"),
        (b"[" * 100_000, "not valid TOML"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"# " + b"x" * 10_000_000, "is 10.0 MB; a configuration file has at most 1024 KiB"),
        (b'theme = "\x1b[31mred"\n', "not valid TOML"),
        (b'"\\u001b[31m" = 1\n', "unknown key"),
    ],
)  # fmt: skip
def test_odd_bytes(tmp_path, data, words):
    path = write(tmp_path, data)
    if words is None:
        load_inventory(path)
    else:
        said = messages(path)
        assert words in said
        assert "\x1b" not in said


def test_what_is_no_regular_file(tmp_path):
    assert "is a folder" in messages(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in messages(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    path = write(tmp_path, GOOD)
    path.chmod(0)
    assert "permission denied" in messages(path)


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_file_that_others_can_write_is_not_trusted(tmp_path, mode):
    path = write(tmp_path, GOOD)
    path.chmod(mode)
    said = messages(path)
    assert f"mode {mode:04o}" in said
    assert "chmod go-w" in said


def test_lines_inside_arrays_inline_tables_and_strings():
    lines = KeyLines(
        'a = """\n[x]\nb = 1\n"""\n[x."y z".w]\nb = [1,\n  { c = 2,  d = "}]#" }, # [q]\n]\n[[t]]\nk = 1\n[[t]]\nk = 2\n[t.u]\nv = 3\n'
    )
    assert lines.line(("a",)) == 1
    assert lines.line(("x", "y z", "w")) == 5
    assert lines.line(("x", "y z", "w", "b")) == 6
    assert lines.line(("x", "y z", "w", "b", 1, "d")) == 7
    assert lines.line(("t", 0, "k")) == 10
    assert lines.line(("t", 1, "k")) == 12
    assert lines.line(("t", 1, "u", "v")) == 14
    assert lines.line(("t", 1, "u", "missing")) == 13
    assert lines.duplicates == []


_TOML_LIKE = st.text(alphabet='ab.="\'[]{},#\n \\1"', max_size=60)


@given(_TOML_LIKE)
def test_any_text_is_read_or_refused_plainly(text):
    said = ()
    try:
        parse_toml(text, ConfigSchema, path="f")
    except FileError as error:
        said = error.lines()
    assert all(line.startswith(("f:", "next:")) for line in said)


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.integers(0, 3)), max_size=8))
def test_every_key_of_a_flat_file_is_found_on_its_line(pairs):
    text, expected, line = "", {}, 1
    for name, blank in pairs:
        if name not in expected:
            text += "\n" * blank + f"{name} = 1\n"
            expected[name] = line + blank
            line += blank + 1
    lines = KeyLines(text)
    assert {name: lines.line((name,)) for name in expected} == expected


def test_load_toml_serves_other_schemas(tmp_path):
    import msgspec

    class Job(msgspec.Struct):
        name: str
        cells: list[int] = []

    file = load_toml(write(tmp_path, 'name = "j"\ncells = [1, 2]\n'), Job, what="job")
    assert file.value.cells == [1, 2]
    assert file.where("cells", 1).endswith(":2")
    with pytest.raises(FileError, match=r"'cells\.1' must be a whole number, not 'x'"):
        load_toml(write(tmp_path, 'name = "j"\ncells = [1, "x"]\n'), Job, what="job")
