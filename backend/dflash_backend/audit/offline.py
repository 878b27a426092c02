"""The audit of files: a drafter's config against a named release, a log and a source tree, no host needed."""

from __future__ import annotations

from pathlib import Path

from dflash_backend.audit.audit import audit
from dflash_backend.audit.declared import MAX_CONFIG_BYTES, read_declared
from dflash_backend.audit.inputs import AuditInputs, SourceTree
from dflash_backend.audit.report import AuditReport
from dflash_backend.audit.trees import open_source
from dflash_backend.core.errors import ConfigError, UsageError
from dflash_backend.core.text import LineDecoder, sanitise
from dflash_backend.sglang.versions import parse_version

MAX_LOG_BYTES = 400_000_000


def audit_files(
    draft_config: Path,
    *,
    version: str | None = None,
    draft_window: int | None = None,
    log: Path | None = None,
    source: Path | None = None,
    target_config: Path | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> AuditReport:
    """Audits files. ``draft_config`` may be the drafter's folder; without ``log`` no flag means no window
    flag.

    Raises UsageError and ConfigError for a file that cannot be read or understood, and for a wrong version.
    """
    if version is None and source is None:
        raise UsageError(
            "the release is not named", next_step="give --sglang-version V, or --source with its files"
        )
    if version is not None:
        parse_version(version)
    if draft_window is not None and draft_window < 1:
        raise UsageError(f"--draft-window {draft_window}: a window has at least one token")
    data = _config(draft_config, "the drafter's config.json")
    declared = read_declared(data, _shown(draft_config))
    if declared.problem:
        raise ConfigError(
            declared.problem,
            where=_shown(draft_config),
            next_step="give the config.json of the drafter, whole",
        )
    target = None if target_config is None else _config(target_config, "the target's config.json")
    if target is not None and read_declared(target).problem:
        raise ConfigError("this is no model's config.json", where=_shown(target_config))
    tree: SourceTree | None = None
    missing = ""
    if source is not None:
        if not source.exists():
            raise ConfigError("there is no such file or folder", where=_shown(source))
        try:
            tree = open_source(source)
        except ConfigError as error:
            if version is None:
                raise
            missing = error.lines()[0]
    return audit(
        AuditInputs(
            subject=_shown(draft_config),
            draft_config=data,
            draft_config_where=_shown(draft_config),
            sglang_version=version,
            draft_window=draft_window,
            no_draft_window=draft_window is None and log is None,
            log=None if log is None else _lines(log),
            log_where=_shown(log),
            source=tree,
            source_missing=missing,
            target_config=target,
            compute_capability=compute_capability,
        )
    )


def _shown(path: Path | None) -> str:
    return "" if path is None else sanitise(str(path), multiline=False, limit=300)


def _config(path: Path, what: str) -> bytes:
    file = path / "config.json" if path.is_dir() else path
    try:
        if not file.is_file():
            raise ConfigError(f"{what} is not there", where=_shown(file))
        size = file.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{what} has {size / 1e6:.0f} MB: no config.json is so large", where=_shown(file)
            )
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror or error}", where=_shown(file)) from None


def _lines(path: Path) -> list[str]:
    """The log's lines; of a huge one the last part, which holds the newest start."""
    decoder = LineDecoder()
    lines: list[str] = []
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
            while chunk := file.read(1 << 20):
                lines += [line for line in decoder.feed(chunk) if _matters(line)]
    except OSError as error:
        raise ConfigError(f"the log cannot be read: {error.strerror or error}", where=_shown(path)) from None
    return lines + decoder.close()


def _matters(line: str) -> bool:
    return "draft runner" in line or "dflash-" in line or "ServerArgs(" in line
