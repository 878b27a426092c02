"""Where a host is: the user's ssh configuration read into a chain of hops, the target last.

asyncssh reads the files (Host, Match, Include, tokens); the chain of jumps is followed here, since asyncssh's
own ProxyJump opens the jump hosts without our rules for host keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dflash_backend.core.errors import ConfigError
from dflash_backend.core.inventory import HostConfig

if TYPE_CHECKING:
    import asyncssh

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
MAX_HOPS = 8

_ADDRESS = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?)\]"
    r"|(?P<host>[^\[\]\s:@/]+)"
    r"|(?P<bare6>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?))"
    r"(?P<port>:[0-9]{1,5})?/?"
)
_PARSE_ERROR = re.compile(r"(?P<path>.*) line (?P<line>\d+): (?P<reason>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """``[user@]host[:port]``, IPv6 in brackets before a port. ``None``: as the ssh configuration says."""

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One SSH connection of a chain."""

    label: str
    """As the user wrote it: for messages."""
    host: str
    port: int
    user: str
    key_name: str
    """The name under which known_hosts files list this host, without the port."""
    key_port: int | None
    """The port that is part of that name; None for 22 and for a HostKeyAlias."""
    known_hosts: tuple[Path, ...] = ()
    """Known hosts files of the ssh configuration, read beside the usual ones."""
    notes: tuple[str, ...] = ()
    """What may explain a failed login: keys that are missing or encrypted."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``asyncssh.connect`` for this hop, all but the tunnel and the host keys."""

    @property
    def known_name(self) -> str:
        """The name as it stands in a known_hosts file."""
        return f"[{self.key_name}]:{self.key_port}" if self.key_port else self.key_name


def parse_address(text: str, *, where: str = "") -> Address:
    """Reads ``[user@]host[:port]``. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"][1:]) if match and match["port"] else None
    if match is None or text.startswith("-") or (port is not None and not 0 < port < 65536):
        raise ConfigError(
            f"{text!r} is not an address",
            where=where,
            next_step="write an alias of ~/.ssh/config, host, user@host:port or [IPv6]:port",
        )
    return Address(host=match["v6"] or match["host"] or match["bare6"], user=match["user"], port=port)


def default_config_files() -> tuple[Path, ...]:
    """The user's and the system's ssh configuration, those that can be read."""
    return tuple(path for path in (Path.home() / ".ssh" / "config", SYSTEM_CONFIG) if _readable(path))


def resolve(host: HostConfig, files: Sequence[Path] | None = None) -> tuple[Hop, ...]:
    """The chain of hops to ``host``, outermost jump first, the host itself last.

    Reads files and may run the user's own ``Match exec``: call it in a thread. ``files``: ssh configuration
    files instead of the usual ones. Raises ConfigError with file and line.
    """
    chosen = default_config_files() if files is None else tuple(files)
    try:
        return _chain(host, chosen)
    except ConfigError as problem:
        # A site-wide file in a dialect that asyncssh does not know must not lock the user out.
        own = tuple(path for path in chosen if path != SYSTEM_CONFIG)
        if own != chosen and problem.where.startswith(f"{SYSTEM_CONFIG.parent}/"):
            return _chain(host, own)
        raise


def _chain(host: HostConfig, files: Sequence[Path]) -> tuple[Hop, ...]:
    target = parse_address(host.address, where=f"host {host.name}")
    done: list[Hop] = []  # from the target outwards
    waiting = [target]
    while waiting:
        address = waiting.pop()
        hop, jumps = _read_hop(address, files, host.identity_file if not done else None, host.name)
        done.append(hop)
        if not waiting:
            # Only the outermost hop follows its own ProxyJump, as OpenSSH does: the others have a way
            # already.
            waiting = [jump for jump in jumps if jump != address]
        if len(done) + len(waiting) > MAX_HOPS:
            trail = " <- ".join(hop.label for hop in done[:MAX_HOPS])
            raise ConfigError(
                f"ProxyJump goes in a circle or over more than {MAX_HOPS} hosts: {trail}",
                where=f"host {host.name}",
                next_step="look at ProxyJump in the ssh configuration (`Host *` matches the jump host too)",
            )
    return tuple(reversed(done))


def _read_hop(
    address: Address, files: Sequence[Path], identity: str | None, name: str
) -> tuple[Hop, list[Address]]:
    options = _options(address, files, name)
    config = options.config
    jump = options.tunnel if isinstance(options.tunnel, str) else ""
    jumps = [
        parse_address(part, where=f"ProxyJump of {address.host}") for part in jump.split(",") if part.strip()
    ]
    key_arguments, notes = _keys(config, identity, name)
    alias = config.get("HostKeyAlias")
    port = int(options.port)
    listed: list[object] = []
    for option in ("UserKnownHostsFile", "GlobalKnownHostsFile"):
        value = config.get(option)
        listed.extend(value if isinstance(value, list) else ())
    hop = Hop(
        label=_label(address),
        host=options.host,
        port=port,
        user=options.username,
        key_name=str(alias or options.host).lower(),
        key_port=None if alias or port == 22 else port,
        known_hosts=tuple(
            Path(str(item)).expanduser()
            for item in listed
            if "%" not in str(item) and str(item) != "/dev/null"
        ),
        notes=notes,
        arguments={**_common(address, files), **key_arguments},
    )
    return hop, jumps


def _label(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{address.user + '@' if address.user else ''}{host}{f':{address.port}' if address.port else ''}"


def _common(address: Address, files: Sequence[Path]) -> dict[str, Any]:
    """Arguments that hold for every hop: what the ssh configuration may not switch on is fixed here."""
    return {
        "host": address.host,
        "port": address.port if address.port is not None else (),
        "username": address.user if address.user is not None else (),
        "config": [str(path) for path in files],
        "agent_forwarding": False,
        "x11_forwarding": False,
        "request_pty": False,
        "command": None,
        "gss_kex": False,  # would do without a host key
        "x509_trusted_certs": None,  # host keys come from known_hosts alone
        "utf8_decode_errors": "replace",
        "encoding": None,
    }


def _options(address: Address, files: Sequence[Path], name: str) -> asyncssh.SSHClientConnectionOptions:
    import asyncssh

    try:
        # client_keys=None: keys are looked at later, one by one, so that a missing one is not an error.
        options = asyncssh.SSHClientConnectionOptions(
            **_common(address, files), client_keys=None, known_hosts=b""
        )
        if options.config.has_match_final():
            options.update(host=options.host, reload=True, final=True)
    except asyncssh.ConfigParseError as problem:
        match = _PARSE_ERROR.fullmatch(str(problem))
        raise ConfigError(
            match["reason"] if match else str(problem),
            where=f"{match['path']}:{match['line']}" if match else f"ssh configuration of {name}",
            next_step="correct that line; `ssh -G HOST` shows what OpenSSH makes of the file",
        ) from problem
    except (ValueError, OSError) as problem:
        raise ConfigError(
            f"the ssh configuration for {_label(address)} cannot be used: {problem}",
            where=f"host {name}",
            next_step="correct it; `ssh -G HOST` shows what OpenSSH makes of it",
        ) from problem
    return options


def _keys(config: Any, identity: str | None, name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(arguments that say which keys to offer, notes for the message of a failed login)."""
    only = bool(config.get("IdentitiesOnly"))
    if identity:
        # One key was named: an agent full of others would use up the server's MaxAuthTries before it.
        only = True
        if not _readable(Path(identity).expanduser()):
            raise ConfigError(
                f"the identity file {identity} cannot be read",
                where=f"host {name}",
                next_step="correct identity_file, or remove it to use the keys of ~/.ssh/config",
            )
    configured = [identity] if identity else [str(item) for item in config.get("IdentityFile") or ()]
    candidates = [Path(item).expanduser() for item in configured]
    if not configured:
        folder = Path.home() / ".ssh"
        candidates = [path for key in _DEFAULT_KEYS if _readable(path := folder / key)]
    keys: list[str] = []
    public: list[str] = []
    notes: list[str] = []
    for path in candidates:
        kind, note = _look_at(path)
        if note:
            notes.append(note)
        if kind == "private":
            keys.append(str(path))
        beside = path if kind == "public" else path.with_name(path.name + ".pub")
        if kind != "private" and _readable(beside):
            public.append(str(beside))
    if not configured and not only:
        return {}, tuple(notes)
    arguments: dict[str, Any] = {"client_keys": keys, "ignore_encrypted": True}
    if only and public:
        arguments["agent_identities"] = public
    elif only:
        arguments["agent_path"] = None
    return arguments, tuple(notes)


_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


def _look_at(path: Path) -> tuple[Literal["private", "encrypted", "public", "unusable"], str]:
    """What a key file is, and what to say about it when the login fails."""
    import asyncssh

    try:
        asyncssh.read_private_key(path)
    except OSError:
        return "unusable", f"key {path} cannot be read"
    except ValueError as problem:
        if isinstance(problem, asyncssh.KeyEncryptionError) or "assphrase" in str(problem):
            return "encrypted", f"key {path} is encrypted: load it into ssh-agent with `ssh-add {path}`"
        try:
            asyncssh.read_public_key(path)
        except (OSError, ValueError):
            return "unusable", f"key {path} cannot be used: {problem}"
        return "public", ""
    return "private", ""


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return path.is_file()
    except OSError:
        return False
