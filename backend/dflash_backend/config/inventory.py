"""The configuration file: hosts, servers and settings, as one Inventory.

read_only = false
profile_dirs = ["~/profiles"]

[hosts.gpu1]
address = "gpu1"            # alias of ~/.ssh/config, or user@host:port
python = "/root/venv"

[servers.kimi]
host = "gpu1"
port = 30000
profile = "kimi-k26-chain"
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from dflash_backend.config.check import suggestion
from dflash_backend.config.locate import Key
from dflash_backend.config.toml import FileError, Problem, TomlFile, load_toml
from dflash_backend.core.errors import ConfigError
from dflash_backend.core.inventory import HostConfig, Inventory, ServerConfig
from dflash_backend.core.paths import config_dir
from dflash_backend.core.text import is_secret_name, sanitise

VARIABLE = "DFLASH_CONSOLE_CONFIG"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of hosts, servers and profiles: they become parts of paths, labels and unit names."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_PINNED = 9
Reporter = Callable[[Key, str], None]

_ADDRESS = re.compile(
    r"(?:[A-Za-z0-9._-]+@)?(?:\[[0-9A-Fa-f:.%A-Za-z0-9]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<port>\d{1,6}))?"
    r"|(?:[A-Za-z0-9._-]+@)?[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]+"
)
_NOT_EMPTY = Annotated[str, msgspec.Meta(min_length=1)]
_PORT = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class HostTable(msgspec.Struct, forbid_unknown_fields=True):
    """One ``[hosts.NAME]``."""

    address: _NOT_EMPTY
    python: _NOT_EMPTY | None = None
    env: dict[str, str] = {}
    enabled: bool = True
    read_only: bool = False
    identity_file: _NOT_EMPTY | None = None


class ServerTable(msgspec.Struct, forbid_unknown_fields=True):
    """One ``[servers.NAME]``."""

    host: _NOT_EMPTY
    port: _PORT
    profile: _NOT_EMPTY | None = None


class ConfigSchema(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    hosts: dict[str, HostTable] = {}
    servers: dict[str, ServerTable] = {}
    profile_dirs: list[_NOT_EMPTY] = []
    read_only: bool = False
    ascii: bool = False
    theme: _NOT_EMPTY | None = None
    keymap: dict[str, _NOT_EMPTY] = {}
    pinned: list[_NOT_EMPTY] = []


def default_path() -> Path:
    """Where the configuration is looked for when none is named."""
    return config_dir() / "config.toml"


def chosen_path(explicit: str | Path | None = None) -> tuple[Path, bool]:
    """(the file to read, whether the user named it): ``--config``, then the environment, then the default."""
    named = str(explicit) if explicit else os.environ.get(VARIABLE, "")
    return (Path(named).expanduser(), True) if named else (default_path(), False)


def load_inventory(explicit: str | Path | None = None) -> Inventory:
    """Reads the configuration. A missing default file is an empty inventory, a missing named one an error.

    Raises FileError (a ConfigError) with every problem of the file.
    """
    path, named = chosen_path(explicit)
    if not named and not path.exists():
        return Inventory(path=str(path))
    try:
        file = load_toml(path, ConfigSchema, what="configuration file")
    except FileError as error:
        if not path.exists():
            raise ConfigError(
                "there is no such configuration file",
                where=sanitise(str(path), multiline=False),
                next_step=f"name another with --config or {VARIABLE}; "
                "'dflash-console info --example' prints one to begin with",
            ) from None
        raise error
    problems = [*_problems(file)]
    if problems:
        raise FileError(problems)
    return _inventory(file)


def require_hosts(inventory: Inventory) -> None:
    """Raises ConfigError with a way forward when nothing is configured."""
    if not inventory.hosts:
        raise ConfigError(
            "no host is configured",
            where=inventory.path,
            next_step="write one ('dflash-console info --example' prints one to begin with) "
            "or try 'dflash-console demo'",
        )


def _problems(file: TomlFile[ConfigSchema]) -> list[Problem]:
    found: list[Problem] = []

    def report(key: Key, text: str) -> None:
        found.append(file.problem(key, text))

    config = file.value
    for name, host in config.hosts.items():
        key: Key = ("hosts", name)
        _check_name(name, key, "host", report)
        _check_host(host, key, report)
    for name, server in config.servers.items():
        key = ("servers", name)
        _check_name(name, key, "server", report)
        if server.host not in config.hosts:
            hint = suggestion(server.host, config.hosts) or "no host is configured"
            report((*key, "host"), f"there is no host '{_clean(server.host)}' ({hint})")
        if server.profile is not None and not NAME.fullmatch(server.profile):
            report((*key, "profile"), f"'{_clean(server.profile)}' cannot be the name of a profile")
    _check_clashes(config, report)
    for index, name in enumerate(config.pinned):
        if not NAME.fullmatch(name):
            report(("pinned", index), f"'{_clean(name)}' cannot be the name of a profile")
        elif name in config.pinned[:index]:
            report(("pinned", index), f"'{name}' is pinned twice")
    if len(config.pinned) > MAX_PINNED:
        report(("pinned",), f"there are keys for {MAX_PINNED} pinned profiles, not {len(config.pinned)}")
    return found


def _check_clashes(config: ConfigSchema, report: Reporter) -> None:
    """Two servers cannot share a port of one machine; two names of a host for one address are one machine."""
    taken: dict[tuple[str, int], str] = {}
    for name, server in config.servers.items():
        host = config.hosts.get(server.host)
        place = (host.address if host else server.host, server.port)
        other = taken.setdefault(place, name)
        if other != name:
            where = f"host '{server.host}'" if host is None else f"'{_clean(host.address)}'"
            report(
                ("servers", name, "port"),
                f"port {server.port} of {where} is already that of server '{other}'",
            )
    folded: dict[str, str] = {}
    for name in config.servers:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            report(("servers", name), f"'{name}' and '{other}' differ in upper and lower case only")


def _check_host(host: HostTable, key: Key, report: Reporter) -> None:
    match = _ADDRESS.fullmatch(host.address)
    if match is None:
        report(
            (*key, "address"),
            f"'{_clean(host.address)}' is neither an alias of ~/.ssh/config nor [user@]host[:port]",
        )
    elif match["port"] is not None and not 1 <= int(match["port"]) <= 65535:
        report((*key, "address"), f"port {match['port']} is not between 1 and 65535")
    for field in ("python", "identity_file"):
        value = getattr(host, field)
        if value is not None and (not value.isprintable() or value.startswith("-")):
            report((*key, field), f"'{_clean(value)}' is no path")
    for name, value in host.env.items():
        for text in env_problems(name, value):
            report((*key, "env", name), text)


def env_problems(name: str, value: str) -> list[str]:
    """What is wrong with one plain environment variable of a configuration or profile."""
    found = []
    if not ENV_NAME.fullmatch(name):
        found.append(
            f"'{_clean(name)}' cannot be the name of an environment variable (letters, digits and _)"
        )
    if "\0" in value:
        found.append(f"the value of {_clean(name)} holds a NUL character")
    if value and is_secret_name(name):
        found.append(
            f"{_clean(name)} looks like a secret: this file holds references only. "
            "Put it in a profile as env:NAME, file:PATH or command:PROGRAM"
        )
    return found


def _check_name(name: str, key: Key, what: str, report: Reporter) -> None:
    if not NAME.fullmatch(name):
        report(
            key,
            f"'{_clean(name)}' cannot be the name of a {what}: letters, digits, . _ -, "
            "at most 64, a letter or digit first",
        )


def _clean(text: str) -> str:
    return sanitise(text, multiline=False, limit=80)


def _inventory(file: TomlFile[ConfigSchema]) -> Inventory:
    config = file.value
    base = Path(file.path).parent
    return Inventory(
        path=file.path,
        hosts={
            name: HostConfig(
                name=name,
                address=host.address,
                python=host.python,
                env=dict(host.env),
                enabled=host.enabled,
                read_only=host.read_only,
                identity_file=host.identity_file,
            )
            for name, host in config.hosts.items()
        },
        servers={
            name: ServerConfig(name=name, host=server.host, port=server.port, profile=server.profile)
            for name, server in config.servers.items()
        },
        profile_dirs=tuple(str(base / Path(folder).expanduser()) for folder in config.profile_dirs),
        read_only=config.read_only,
        ascii=config.ascii,
        theme=config.theme,
        keymap=dict(config.keymap),
        pinned=tuple(config.pinned),
    )
