"""Host keys: which ones are trusted, what an offered key is, and our own known_hosts file.

The user's files are read and never written; ours (0600, in the state folder) is written only by ``trust`` and
``forget``. Where ours names a host, its keys alone count for that host, so that replacing a changed key does
not leave the old one valid; ``@revoked`` and ``@cert-authority`` count wherever they stand.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_backend.core.paths import state_dir, write_atomic
from dflash_backend.ssh.config import SYSTEM_KNOWN_HOSTS, Hop

if TYPE_CHECKING:
    import asyncssh


class Verdict(enum.StrEnum):
    """What an offered host key is."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key of a known_hosts file. ``source`` is ``file:line``."""

    type: str
    fingerprint: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport:
    """The key that one hop of a host shows, seen before any authentication.

    ``name`` is the known_hosts name, ``line`` the public key as ``type base64``, ``known`` the keys that were
    expected, ``compare`` a command that prints the fingerprint on the machine itself, ``notes`` lines of
    known_hosts files that could not be read.
    """

    host: str
    hop: str
    name: str
    type: str
    fingerprint: str
    verdict: Verdict
    line: str
    known: tuple[KnownKey, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compare(self) -> str:
        """What to run on the host, over a way that is already trusted, to compare."""
        kind = self.type.removeprefix("ssh-").removeprefix("ecdsa-sha2-")
        kind = "ecdsa" if kind.startswith("nistp") else kind
        return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


@dataclass(frozen=True, slots=True)
class _Line:
    """One usable line: who it is for (still unparsed) and what it says."""

    source: str
    own: bool
    names: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What the files say about one hop. ``keys`` are the trusted ones with their origin.

    ``loose``: the keys are of the same host name without the port, so another key there means "unknown".
    """

    keys: tuple[tuple[asyncssh.SSHKey, str], ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()
    loose: bool = False
    notes: tuple[str, ...] = ()

    def judge(self, key: asyncssh.SSHKey) -> Verdict:
        """What ``key`` is for this hop."""
        if key in self.revoked:
            return Verdict.REVOKED
        if any(key == known for known, _ in self.keys):
            return Verdict.TRUSTED
        return Verdict.CHANGED if self.keys and not self.loose else Verdict.UNKNOWN

    def report(self, key: asyncssh.SSHKey, *, host: str, hop: Hop) -> KeyReport:
        """The report on ``key``, shown by ``hop`` of the inventory's ``host``."""
        return KeyReport(
            host=host,
            hop=hop.label,
            name=hop.known_name,
            type=key.get_algorithm(),
            fingerprint=key.get_fingerprint(),
            verdict=self.judge(key),
            line=" ".join(key.export_public_key("openssh").decode().split()[:2]),
            known=()
            if self.loose
            else tuple(
                KnownKey(type=known.get_algorithm(), fingerprint=known.get_fingerprint(), source=source)
                for known, source in self.keys
            ),
            notes=self.notes,
        )


def default_known_hosts() -> tuple[Path, ...]:
    """The user's and the system's files, as OpenSSH reads them."""
    folder = Path.home() / ".ssh"
    return (folder / "known_hosts", folder / "known_hosts2", *SYSTEM_KNOWN_HOSTS)


class KnownHosts:
    """Our own known_hosts file beside the user's. A line that cannot be read is skipped and noted."""

    def __init__(self, own: Path | None = None, others: Sequence[Path] | None = None) -> None:
        """``own``: ours, default in the state folder. ``others``: the user's, default as OpenSSH has them."""
        self._own = own
        self._others = others

    @property
    def own(self) -> Path:
        """The file that ``trust`` writes."""
        return self._own or state_dir() / "known_hosts"

    def look_up(self, hop: Hop) -> Trust:
        """What the files say about ``hop``. Reads them anew: a line added by ssh itself counts at once."""
        notes: list[str] = []
        lines = list(self._lines(hop, notes))
        exact = self._collect(lines, hop.known_name, notes)
        if exact.keys or exact.authorities or not hop.key_port:
            return exact
        # OpenSSH also accepts a key listed without the port; a different one there says nothing about this
        # port.
        bare = self._collect(lines, hop.key_name, notes)
        return Trust(
            keys=bare.keys,
            authorities=bare.authorities,
            revoked=(*exact.revoked, *bare.revoked),
            loose=True,
            notes=tuple(notes),
        )

    def add(self, report: KeyReport) -> None:
        """Writes the reported key to our file, in place of whatever it held under that name."""
        kept = [line for line in self._own_text() if not _names_exactly(line, report.name)]
        write_atomic(self.own, "\n".join([*kept, f"{report.name} {report.line}"]) + "\n")

    def remove(self, name: str) -> int:
        """Takes every line for the known_hosts name out of our file; the number of lines removed."""
        lines = self._own_text()
        kept = [line for line in lines if not _names_exactly(line, name)]
        if len(kept) < len(lines):
            write_atomic(self.own, "".join(f"{line}\n" for line in kept))
        return len(lines) - len(kept)

    def _own_text(self) -> list[str]:
        try:
            return self.own.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []

    def _lines(self, hop: Hop, notes: list[str]) -> Iterator[_Line]:
        others = default_known_hosts() if self._others is None else self._others
        for path in dict.fromkeys((self.own, *others, *hop.known_hosts)):
            try:
                text = path.read_text("utf-8", "replace")
            except FileNotFoundError:
                continue
            except OSError as problem:
                notes.append(f"{path}: {problem.strerror or problem}")
                continue
            for number, line in enumerate(text.splitlines(), 1):
                parts = line.split()
                if not parts or parts[0].startswith("#"):
                    continue
                source = f"{path}:{number}"
                names = parts[1] if parts[0].startswith("@") and len(parts) > 1 else parts[0]
                if len(parts) < (4 if parts[0].startswith("@") else 3) or not all(names.split(",")):
                    notes.append(f"{source}: not a line of a known_hosts file, skipped")
                    continue
                yield _Line(source, path == self.own, names, line)

    def _collect(self, lines: Sequence[_Line], name: str, notes: list[str]) -> Trust:
        from asyncssh import import_known_hosts

        ours: list[tuple[asyncssh.SSHKey, str]] = []
        theirs: list[tuple[asyncssh.SSHKey, str]] = []
        authorities: list[asyncssh.SSHKey] = []
        revoked: list[asyncssh.SSHKey] = []
        for line in lines:
            if not _may_match(line.names, name):
                continue
            try:
                # One line at a time: asyncssh gives up on the whole file at the first bad one.
                found = import_known_hosts(line.text).match(name, "", None)
            except ValueError as problem:
                notes.append(f"{line.source}: {problem}, skipped")
                continue
            (ours if line.own else theirs).extend((key, line.source) for key in found[0])
            authorities.extend(found[1])
            revoked.extend(found[2])
        return Trust(
            keys=tuple(ours or theirs),
            authorities=tuple(authorities),
            revoked=tuple(revoked),
            notes=tuple(notes),
        )


def _may_match(names: str, name: str) -> bool:
    """Cheap test before a line is parsed: False only when the line cannot be about ``name``."""
    if names.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in names[3:].split("|"))
        except (ValueError, binascii.Error):
            return True  # let the parser say what is wrong
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    return any(char in names for char in "*?!/|") or name in names.lower().split(",")


def _names_exactly(line: str, name: str) -> bool:
    parts = line.split()
    return bool(parts) and parts[0] == name
