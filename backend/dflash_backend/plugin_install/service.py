"""Installs the plugin where a host's ``python`` points, and proves that SGLang finds it there."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dflash_backend.core.errors import FailedError
from dflash_backend.plugin_install import wheel
from dflash_backend.ssh.link import HostLink
from dflash_sglang import releases

SUPPORTED = (*releases.PATCHED, *releases.VERIFIED)
"""SGLang releases that the plugin knows."""

_TIMEOUT_S = 120.0


class _Copy(msgspec.Struct, frozen=True):
    version: str
    where: str
    editable: bool
    damage: list[str]


class _Found(msgspec.Struct, frozen=True):
    named: int = 0
    loads: bool = False
    heavy: bool = False
    error: str = ""
    version: str = ""
    where: str = ""


class _Python(msgspec.Struct, frozen=True):
    path: str
    version: str
    prefix: str


class _Sglang(msgspec.Struct, frozen=True):
    version: str


class _Point(msgspec.Struct, frozen=True):
    name: str
    distribution: str


class _Answer(msgspec.Struct, frozen=True):
    python: _Python
    folder: str
    sglang: list[_Sglang]
    copies: list[_Copy]
    others: list[_Point]
    found: _Found | None = None
    allowed: str | None = None
    switch: str | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """The plugin in a host's environment, as a server started there now would find it.

    ``installed`` is the version found there, None for none; ``available`` the one that this console would
    install. ``works`` is True when SGLang will load exactly one intact copy. ``problems`` say why it does
    not, or what else is odd; empty when all is well or nothing is installed.
    """

    host: str
    python: str
    sglang: str | None
    installed: str | None
    available: str
    where: str | None
    works: bool
    problems: tuple[str, ...] = ()

    @property
    def upgradable(self) -> bool:
        """Whether an installation would bring another version."""
        return self.installed is not None and self.installed != self.available


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Outcome of an installation or removal: whether anything was done, and what is there now."""

    changed: bool
    status: PluginStatus
    sha256: str = ""
    """Hash of the wheel installed, in hexadecimal; empty for a removal."""


async def status(link: HostLink, *, env: Mapping[str, str] | None = None) -> PluginStatus:
    """What is installed on a host. ``env`` is added to the host's own: what a server would be launched with.

    Raises the errors of ``HostLink.run_program``.
    """
    return _status(link, await _ask(link, "status", env=env))


async def install(link: HostLink) -> Changed:
    """Installs or upgrades the plugin; does nothing when this very wheel is there and intact.

    Raises RefusedError (no or unknown SGLang, a second copy, no permission: nothing was changed), FailedError
    (disk full, damaged on its way, not found afterwards: what was there before is there again),
    UnrestoredError. Servers that run go on without it until they are restarted.
    """
    built = wheel.build()
    sent = {
        "version": built.version,
        "sha256": built.sha256,
        "data": base64.b64encode(built.data).decode(),
    }
    answer = await _ask(link, "install", wheel=sent, supported=list(SUPPORTED))
    return Changed(changed=answer.changed, status=_status(link, answer), sha256=built.sha256)


async def uninstall(link: HostLink) -> Changed:
    """Removes the plugin's files; does nothing when it is not installed.

    Raises RefusedError (an editable installation, foreign files among its own, no permission) and
    FailedError; nothing was removed then. Servers that run keep it until they are restarted.
    """
    answer = await _ask(link, "uninstall")
    return Changed(changed=answer.changed, status=_status(link, answer))


async def _ask(link: HostLink, op: str, *, env: Mapping[str, str] | None = None, **more: Any) -> _Answer:
    request = {
        "op": op,
        "distribution": wheel.DISTRIBUTION,
        "package": wheel.PACKAGE,
        "entry_point": wheel.ENTRY_POINT,
        "env": {**link.config.env, **(env or {})},
        **more,
    }
    answer = await link.run_program(
        "plugin", request, timeout=_TIMEOUT_S, secrets=tuple(request["env"].values())
    )
    try:
        return msgspec.convert(answer, _Answer)
    except msgspec.ValidationError as error:
        raise FailedError(f"the host's answer was not understood: {error}", where=link.config.name) from error


def _status(link: HostLink, answer: _Answer) -> PluginStatus:
    problems = list(_problems(answer))
    first = answer.copies[0] if answer.copies else None
    return PluginStatus(
        host=link.config.name,
        python=answer.python.path,
        sglang=answer.sglang[0].version if answer.sglang else None,
        installed=first.version if first else None,
        available=wheel.build().version,
        where=first.where if first else None,
        works=first is not None and not problems,
        problems=tuple(problems),
    )


def _problems(answer: _Answer) -> list[str]:
    found: list[str] = []
    if not answer.copies and not answer.others:
        return found
    if not answer.sglang:
        found.append(f"SGLang is not installed in {answer.python.prefix}")
    elif answer.sglang[0].version not in SUPPORTED:
        known = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"
        found.append(
            f"it does not know SGLang {answer.sglang[0].version} (it knows {known}): DFLASH would not start"
        )
    if len(answer.copies) > 1:
        places = ", ".join(f"{copy.version} in {copy.where}" for copy in answer.copies)
        found.append(f"it is installed {len(answer.copies)} times: {places}")
    if answer.others:
        names = ", ".join(point.distribution for point in answer.others)
        found.append(f"another distribution brings it as well: {names}")
    for copy in answer.copies:
        found.extend(f"{problem} ({copy.where})" for problem in copy.damage)
    if answer.found is not None and answer.copies:
        if answer.found.error:
            found.append(f"a new interpreter cannot load it: {answer.found.error}")
        elif not answer.found.loads:
            found.append("a new interpreter does not find it")
    if answer.allowed is not None and wheel.ENTRY_POINT not in _names(answer.allowed):
        found.append(f"SGLANG_PLUGINS={answer.allowed} keeps it out: add {wheel.ENTRY_POINT}, or unset it")
    if (answer.switch or "").strip().lower() == "off":
        found.append("DFLASH_SGLANG_WINDOWS=off switches its windows off")
    return found


def _names(listed: str) -> set[str]:
    return {name.strip() for name in listed.split(",")}
