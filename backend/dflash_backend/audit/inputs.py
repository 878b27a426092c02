"""What an audit is given: everything that could be read, and why the rest could not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_backend.audit.report import Evidence

SOURCE_PATTERNS: tuple[str, ...] = (
    "sglang/_version.py",
    "sglang/version.py",
    "sglang/srt/models/dflash*.py",
    "sglang/srt/models/laguna*.py",
    "sglang/srt/models/dspark*.py",
    "sglang/srt/configs/laguna.py",
    "sglang/srt/speculative/dflash*.py",
    "sglang/srt/speculative/spec_info.py",
    "sglang/srt/speculative/draft_worker_common.py",
    "sglang/srt/layers/radix_attention.py",
    "sglang/srt/layers/attention/*_backend.py",
    "sglang/srt/model_executor/model_runner*.py",
    "sglang/srt/model_executor/model_runner_components/*.py",
    "sglang/srt/server_args.py",
    "sglang/srt/arg_groups/*.py",
    "sglang/srt/arg_groups/fields/*.py",
)
"""What ``read_source`` may want, as shell patterns relative to the folder that holds the package ``sglang``.

A collector over SSH needs to bring these, and the names of the ``*.dist-info`` folders beside (with their
METADATA for ``sglang``), no more.
"""

MAX_SOURCE_BYTES = 2_000_000
"""Larger files are no source of SGLang: they are not read."""


class SourceTree(Protocol):
    """Texts of an installed or unpacked SGLang by path, relative to the folder that holds ``sglang``.

    Nothing is imported or run. Implementations: a folder, a wheel, a set of texts brought over SSH.
    """

    @property
    def where(self) -> str:
        """What was read, for evidence: a folder or a file."""
        ...

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when there is none. Raises OSError when it cannot be read."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder (``""``: beside the package); empty when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """A source tree out of a mapping: what a collector brought from a host."""

    where: str
    files: Mapping[str, bytes]

    def read(self, path: str) -> bytes | None:
        """The bytes of a file."""
        return self.files.get(path)

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder."""
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self.files if path.startswith(prefix)})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditInputs:
    """Everything that is known of one server, or of a config and a release. None: not known.

    The ``*_missing`` texts say why something could not be read; they appear in the report.
    """

    subject: str
    """A server's name or the config's path."""
    host: str = ""
    """The host's name in the configuration, for remedies that can be run as they are."""

    draft_config: bytes | str | Mapping[str, object] | None = None
    """The drafter's config.json, raw or decoded."""
    draft_config_where: str = "config.json"
    draft_config_missing: str = ""

    sglang_version: str | None = None
    version_where: str = "--sglang-version"

    server_info: Mapping[str, object] | None = None
    """The answer of /server_info, decoded. Stronger than ``argv``."""
    argv: Sequence[str] | None = None
    """The command line of the server's process or run."""
    draft_window: int | None = None
    """The window flag's value as the user states it, where there are no arguments to read."""
    no_draft_window: bool = False
    """True: the user states that the flag is not given (offline, with a release named)."""

    log: Iterable[str] | None = None
    """Lines of the start-up log, oldest first; the newest start-up in it counts."""
    log_where: str = "log"

    source: SourceTree | None = None
    source_missing: str = ""

    target_config: bytes | str | Mapping[str, object] | None = None
    compute_capability: tuple[int, int] | None = None
    """Of the server's GPUs, for the tree mask: (12, 0) is SM120."""

    measured: tuple[Evidence, ...] = ()
    """What a measurement has shown, to stand in the evidence."""
    measured_verdict: str | None = None
    """``enforced``, ``ignored`` or ``not distinguishable``, of a measurement of accept lengths."""

    at: float | None = None
    """When it was read, seconds since the epoch."""
