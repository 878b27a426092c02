"""Asks a host for the facts behind a plan."""

from __future__ import annotations

import re

import msgspec

from dflash_backend.control.facts import HostFacts
from dflash_backend.core.errors import FailedError
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.argv import interpreter
from dflash_backend.sglang.speculation import WINDOWS_FEATURE
from dflash_backend.ssh.link import HostLink

PLUGIN_PACKAGE = "dflash_sglang"


class _Python(msgspec.Struct):
    path: str = ""
    version: str = ""


class _Installed(msgspec.Struct):
    version: str = ""
    where: str = ""
    editable: bool = False


class _EntryPoint(msgspec.Struct):
    name: str = ""
    value: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether SGLang would load our plugin through it, whatever its distribution is called."""
        return self.value.partition(":")[0].partition(".")[0].strip() == PLUGIN_PACKAGE


class _Answer(msgspec.Struct):
    python: _Python
    sglang: list[_Installed]
    plugins: list[_EntryPoint]
    compute_caps: list[str] | None = None
    options: list[str] | None = None


async def ask_host(link: HostLink) -> HostFacts:
    """The facts of one host. An interpreter that does not run is a fact, not an error.

    Raises UnreachableError and RefusedError as the connection does.
    """
    python = interpreter(link.config.python)
    host = link.config.name
    try:
        answer = msgspec.convert(await link.run_program("facts", {}, timeout=30.0), _Answer)
    except msgspec.ValidationError as error:
        raise FailedError(f"the host's answer is not understood: {error}", where=f"host {host}") from error
    except FailedError as error:
        return HostFacts(host=host, python=python, python_ok=False, python_note=error.what)
    note = ""
    version = None
    if answer.sglang:
        version = sanitise(answer.sglang[0].version, multiline=False, limit=80)
        if len({one.version for one in answer.sglang}) > 1:
            seen = ", ".join(f"{one.version} in {one.where}" for one in answer.sglang)
            note = sanitise(f"several copies of SGLang: {seen}; the first is imported", limit=400)
    else:
        note = f"SGLang is not installed in {python} on {host}"
    caps = answer.compute_caps
    return HostFacts(
        host=host,
        python=python,
        sglang_version=version,
        sglang_note=note,
        plugin_features=(
            frozenset({WINDOWS_FEATURE}) if any(p.is_ours for p in answer.plugins) else frozenset()
        ),
        compute_capability=_capability(caps[0]) if caps else None,
        gpu_count=len(caps) if caps is not None else None,
        options=frozenset(answer.options) if answer.options else None,
    )


def _capability(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
