"""From what the host's program saw to findings: what is fit, what is not, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_backend.core.errors import ConfigError
from dflash_backend.doctor.report import Finding
from dflash_backend.sglang.options import option_table
from dflash_backend.sglang.versions import parse_version, releases

FLAGS: tuple[tuple[str, ...], ...] = (
    ("model-path",),
    ("host",),
    ("port",),
    ("enable-metrics",),
    ("mem-fraction-static",),
    ("context-length",),
    ("max-running-requests",),
    ("tp-size", "tensor-parallel-size"),
    ("attention-backend",),
    ("speculative-algorithm",),
    ("speculative-draft-model-path", "speculative-draft-model"),
    ("speculative-num-draft-tokens",),
    ("speculative-dflash-block-size",),
    ("speculative-draft-window-size", "speculative-dflash-draft-window-size"),
)
"""Options that commands of ours may hold, each with the spellings that do."""

HOST = "HOST"
"""Stands in next steps where the host's name belongs; ``check_host`` knows it."""
NEEDED_MIB = 1024.0
WISHED_MIB = 20 * 1024.0
NEEDED_FILES = 1000


def examine(answer: object, ports: Sequence[int]) -> list[Finding]:
    """The findings for an answer of ``hostside.doctor``. Odd or missing parts become ``unknown``."""
    seen: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    readers = {
        "python": _python,
        "sglang": _sglang,
        "flags": _flags,
        "plugin": _plugin,
        "gpus": _gpus,
        "disk": _disk,
        "services": _services,
    }
    sections = {"flags": "sglang"}
    found = [_read(name, seen.get(sections.get(name, name)), reader) for name, reader in readers.items()]
    by_port = seen.get("ports")
    for port in ports:
        section = by_port.get(str(port)) if isinstance(by_port, Mapping) else None
        found.append(_read(f"port {port}", section, _port))
    return found


def _read(name: str, section: object, reader: Any) -> Finding:
    if not isinstance(section, Mapping):
        return Finding(name=name, status="unknown", text="the host did not say")
    if "error" in section:
        return Finding(name=name, status="unknown", text=f"could not be looked at: {section['error']}")
    try:
        finding: Finding = reader(name, section)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        return Finding(name=name, status="unknown", text=f"the host's answer cannot be read: {problem!r}")
    return finding


def _python(name: str, seen: Mapping[str, Any]) -> Finding:
    kind = "venv" if seen.get("venv") else "system interpreter"
    text = f"{seen['version']} at {seen['path']} ({kind}), {seen.get('system')} {seen.get('machine')}"
    return Finding(name=name, status="ok", text=f"{text}, as {seen.get('user')}")


def _sglang(name: str, seen: Mapping[str, Any]) -> Finding:
    copies = seen["copies"]
    if not copies:
        if seen["package"]:
            return Finding(
                name=name,
                status="warn",
                text=f"a source tree without version at {seen['package']}",
                next_step="install it into the venv (pip install -e), so that its version can be known",
            )
        return Finding(
            name=name,
            status="fail",
            text="not installed for this interpreter",
            next_step="set python for this host to the venv that holds SGLang, or install it there",
        )
    first = copies[0]
    text = f"{first['version']} in {first['where']}" + (" (editable)" if first.get("editable") else "")
    if len(copies) > 1:
        others = ", ".join(f"{copy['version']} in {copy['where']}" for copy in copies[1:])
        return Finding(
            name=name,
            status="warn",
            text=f"{text} is imported, but there is also {others}",
            next_step="uninstall one of them: pip may change the copy that is not running",
        )
    if not seen["package"]:
        return Finding(
            name=name,
            status="fail",
            text=f"{text}, but the package itself is missing",
            next_step="reinstall SGLang in this venv",
        )
    return _known_release(name, first["version"], text)


def _known_release(name: str, version: str, text: str) -> Finding:
    oldest, newest = releases()[0], releases()[-1]
    try:
        parsed = parse_version(version)
    except ConfigError:
        return Finding(name=name, status="warn", text=f"{text}, which is not a version number")
    if parsed.base in releases():
        if parsed.unreleased or parsed.local:
            return Finding(name=name, status="warn", text=f"{text}, a build of its own kind")
        return Finding(name=name, status="ok", text=text)
    if parsed.order < parse_version(oldest).order:
        return Finding(
            name=name,
            status="fail",
            text=f"{text} is older than {oldest}, the first release with DFLASH",
            next_step=f"install a release from {oldest} to {newest}",
        )
    return Finding(
        name=name,
        status="warn",
        text=f"{text} is not among the releases that are known here ({oldest} to {newest})",
        next_step="its options are read from its source; look at the plan before a launch",
    )


def _flags(name: str, seen: Mapping[str, Any]) -> Finding:
    if not seen["package"]:
        return Finding(name=name, status="unknown", text="no SGLang to read them from")
    if seen.get("options_error"):
        return Finding(name=name, status="unknown", text=f"cannot be read: {seen['options_error']}")
    has = set(seen["options"])
    used = [next((option for option in spellings if option in has), None) for spellings in FLAGS]
    missing = [spellings[0] for spellings, option in zip(FLAGS, used, strict=True) if option is None]
    window = next((option for option in FLAGS[-1] if option in has), None)
    text = f"{len(has)} options, {len(FLAGS) - len(missing)} of the {len(FLAGS)} that are used here"
    if missing:
        return Finding(
            name=name,
            status="fail" if "speculative-algorithm" in missing or "model-path" in missing else "warn",
            text=f"{text}; not known: {', '.join('--' + option for option in missing)}",
            next_step="profiles that need them are refused on this host",
        )
    strange = _against_table(seen, has)
    return Finding(
        name=name,
        status="warn" if strange else "ok",
        text=f"{text}; the window is --{window}{strange}",
        next_step="the source was changed after the release: look at the plan before a launch"
        if strange
        else "",
    )


def _against_table(seen: Mapping[str, Any], has: set[str]) -> str:
    """What the source lacks that its release had; empty for an unknown release or when nothing is missing."""
    table = option_table()
    version = seen["copies"][0]["version"] if seen["copies"] else ""
    if version not in table.releases:
        return ""
    gone = sorted(set(table.at(version)) - has)
    return f"; {len(gone)} options of {version} are missing ({', '.join(gone[:3])})" if gone else ""


def _plugin(name: str, seen: Mapping[str, Any]) -> Finding:
    copies = seen["copies"]
    if not copies:
        return Finding(
            name=name,
            status="warn",
            text="not installed: SGLang before 0.5.14 ignores the drafter's windows",
            next_step=f"dflash-console plugin install {HOST}",
        )
    text = f"{copies[0]['version']} in {copies[0]['where']}"
    if len(copies) > 1:
        return Finding(
            name=name,
            status="warn",
            text=f"{text}, and {len(copies) - 1} more",
            next_step=f"dflash-console plugin uninstall {HOST}, then install it again",
        )
    allowed = seen.get("allowed")
    if allowed is not None and "dflash_sglang" not in [part.strip() for part in allowed.split(",")]:
        return Finding(
            name=name,
            status="warn",
            text=f"{text}, but SGLANG_PLUGINS={allowed} keeps it out",
            next_step="add dflash_sglang to SGLANG_PLUGINS, or unset it",
        )
    return Finding(name=name, status="ok", text=text)


def _gpus(name: str, seen: Mapping[str, Any]) -> Finding:
    state = seen["state"]
    if state == "absent":
        other = ", ".join(seen.get("other") or ())
        return Finding(
            name=name,
            status="warn",
            text=f"no GPU: nvidia-smi is not there{f', but {other} is' if other else ''}",
            next_step="only servers on the CPU can run here" if not other else "",
        )
    if state != "ok":
        return Finding(
            name=name,
            status="fail",
            text=seen["text"],
            next_step="run nvidia-smi on the host; the driver or a GPU needs attention before a launch",
        )
    gpus = seen["gpus"]
    if not gpus:
        said = (seen.get("unread") or ["nvidia-smi lists none"])[0]
        return Finding(name=name, status="warn", text=f"no GPU: {said}")
    kinds: dict[tuple[str, float | None], int] = {}
    for gpu in gpus:
        kind = (gpu["name"], gpu["memory_total_mib"])
        kinds[kind] = kinds.get(kind, 0) + 1
    parts = [
        f"{count} x {model}" + (f", {memory:.0f} MiB each" if memory is not None else "")
        for (model, memory), count in kinds.items()
    ]
    text = f"{'; '.join(parts)}; driver {gpus[0]['driver']}"
    if seen.get("unread"):
        return Finding(
            name=name,
            status="warn",
            text=f"{text}; not readable: {seen['unread'][0]}",
            next_step="run nvidia-smi on the host",
        )
    if len(kinds) > 1:
        return Finding(
            name=name, status="warn", text=text, next_step="a server over unequal GPUs uses the least"
        )
    return Finding(name=name, status="ok", text=text)


def _disk(name: str, seen: Mapping[str, Any]) -> Finding:
    free, path, files = float(seen["free_mib"]), seen["path"], seen.get("files_free")
    text = f"{free / 1024:.1f} GiB free for runs in {path}"
    if not seen["writable"]:
        return Finding(
            name=name,
            status="fail",
            text=f"{path} cannot be written",
            next_step="make the folder writable, or set XDG_STATE_HOME on the host",
        )
    if free < NEEDED_MIB or (files is not None and files < NEEDED_FILES):
        return Finding(
            name=name,
            status="fail",
            text=text
            + (f" and room for {files} files" if files is not None and files < NEEDED_FILES else ""),
            next_step="make room before a launch: logs of a run need it",
        )
    if free < WISHED_MIB:
        return Finding(name=name, status="warn", text=text, next_step="model weights may need more")
    return Finding(name=name, status="ok", text=text)


def _services(name: str, seen: Mapping[str, Any]) -> Finding:
    if seen["systemd"] == "absent":
        return Finding(name=name, status="ok", text="no systemd: runs are kept by a supervisor of their own")
    if seen["systemd"] == "silent":
        return Finding(
            name=name,
            status="ok",
            text="this user's systemd does not answer: runs are kept by a supervisor of their own",
        )
    if not seen["lingers"]:
        return Finding(
            name=name,
            status="warn",
            text="this user's systemd answers, but lingering is off",
            next_step="loginctl enable-linger on the host; else runs are kept by a supervisor of their own",
        )
    return Finding(name=name, status="ok", text="this user's systemd keeps runs, lingering is on")


def _port(name: str, seen: Mapping[str, Any]) -> Finding:
    if not seen["who"]:
        return Finding(name=name, status="ok", text="free")
    runs = seen.get("runs") or ()
    if runs:
        return Finding(name=name, status="ok", text=f"run {runs[0]} listens, {seen['who']}")
    return Finding(
        name=name,
        status="warn",
        text=f"taken by {seen['who']}",
        next_step="stop that process, adopt it if it is an SGLang server, or give the server another port",
    )
