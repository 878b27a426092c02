"""Jobs by name: files in ``jobs/`` beside the configuration, and one that is always there."""

from __future__ import annotations

from pathlib import Path

from dflash_backend.bench.job import Job, load_job, parse_job
from dflash_backend.core.errors import UsageError

FIRST_LOOK = "first-look"
_FIRST_LOOK_TOML = """
description = "two cells, a few minutes at most: one request at a time, then four"
concurrency = [1, 4]
output_tokens = 96
requests = 8
"""


def job_names(config: str | Path | None) -> tuple[str, ...]:
    """Names of all jobs; ``config`` is the configuration file, if there is one."""
    return tuple(dict.fromkeys([*_files(config), FIRST_LOOK]))


def named_job(name: str, config: str | Path | None) -> Job:
    """The job called ``name``. Raises UsageError when there is none, FileError when it cannot be read."""
    file = _files(config).get(name)
    if file is not None:
        return load_job(file)
    if name == FIRST_LOOK:
        return parse_job(_FIRST_LOOK_TOML, path=f"{FIRST_LOOK}.toml")
    raise UsageError(
        f"there is no job {name!r}",
        next_step=f"jobs: {', '.join(job_names(config))}; they lie in jobs/ beside the configuration file",
    )


def _files(config: str | Path | None) -> dict[str, Path]:
    folder = Path(config).parent / "jobs" if config else None
    files = sorted(folder.glob("*.toml")) if folder is not None and folder.is_dir() else []
    return {file.stem: file for file in files}
