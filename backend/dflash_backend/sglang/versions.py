"""What each SGLang release can do: 0.5.11 to 0.5.23, read from the releases' sources.

Names that the readers need (endpoints, metric and meta_info names) and abilities that the builder of the
launch command needs are kept here in one table, so that no other module compares version numbers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from dflash_backend.core.errors import ConfigError, RefusedError
from dflash_backend.core.text import sanitise
from dflash_backend.sglang.options import option_table

FIRST = "0.5.11"
"""First release with DFLASH."""

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){1,3})"
    r"(?:[.-]?(?P<pre>a|alpha|b|beta|c|rc|pre)[.-]?(?P<pre_n>\d*))?"
    r"(?:[.-]?post[.-]?(?P<post>\d+))?"
    r"(?:[.-]?(?P<dev>dev)[.-]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[A-Za-z0-9._-]+))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version number as SGLang prints it, e.g. ``0.5.12.post1`` or ``0.5.14.dev37+g1a2b3c``."""

    release: tuple[int, ...]
    post: int = 0
    unreleased: bool = False
    """A development or pre-release build."""
    local: str = ""
    text: str = ""

    @property
    def order(self) -> tuple[tuple[int, ...], int]:
        """Sorts releases and their post releases."""
        return (self.release + (0,) * (4 - len(self.release)), self.post)

    @property
    def base(self) -> str:
        """The release without development and local parts: ``0.5.12.post1``."""
        return ".".join(map(str, self.release)) + (f".post{self.post}" if self.post else "")


def parse_version(text: str) -> Version:
    """Reads a version number. Raises ConfigError when ``text`` is none."""
    clean = sanitise(text, multiline=False, limit=80).strip()
    match = _VERSION.fullmatch(clean)
    if match is None:
        raise ConfigError(
            f"'{clean}' is not a version of SGLang", next_step="give it like 0.5.14 or 0.5.12.post1"
        )
    return Version(
        release=tuple(int(part) for part in match["release"].split(".")),
        post=int(match["post"] or 0),
        unreleased=bool(match["pre"] or match["dev"]),
        local=match["local"] or "",
        text=clean,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one release can do and how it names things. ``notes`` say where this is a guess.

    ``name`` is the release of the table; ``version`` is what was asked for.
    """

    name: str
    version: Version
    notes: tuple[str, ...] = ()
    window_option: str
    """Option for a draft window in tokens; one window for all layers."""
    window_field: str
    """The same as a name in /server_info."""
    honours_layer_windows: bool
    """The draft model applies ``layer_types`` and ``sliding_window`` of its config by itself."""
    spec_v2: bool
    """DFLASH runs on the overlapping worker; before, the overlap scheduler is switched off."""
    registers_algorithms: bool
    """``SpeculativeAlgorithm.register`` exists and ``--speculative-algorithm`` takes any name."""
    dflash_on_cpu_refused: bool
    dflash_with_dp_attention: bool
    draft_backends: tuple[str, ...]
    """Attention backends that the draft worker takes; others fall back with a warning."""
    explicit_causal: bool
    """A top-level ``is_causal`` of the draft config overrides the causality of its layers."""
    draft_pool_by_geometry: bool
    """The draft KV pool is sized from the draft's real shape; before, from a ratio of layer counts."""
    ready_endpoint: bool
    get_load_endpoint: bool
    return_meta_info: bool
    """The OpenAI routes take ``return_meta_info``."""
    graph_memory_by_phase: bool
    """``memory_usage.graph`` of /server_info is a mapping; before, a number."""
    meta_accepted: tuple[str, ...]
    """meta_info names of the accepted drafts, best first."""
    meta_proposed: tuple[str, ...]
    meta_histogram: tuple[str, ...]

    def knows(self, option: str) -> bool:
        """True when the release takes ``--option`` (given without dashes), hidden or deprecated included."""
        here = option_table().at(self.name)
        return option in here or (option.startswith("no-") and is_toggle(option[3:], self.name))


def is_toggle(option: str, release: str) -> bool:
    """True for an option that also exists as ``--no-option``."""
    found = option_table().at(release).get(option)
    return found is not None and found.kind == "toggle"


def _since(release: str, first: str) -> bool:
    return parse_version(release).order >= parse_version(first).order


@functools.cache
def _facts(name: str) -> Release:
    def since(first: str) -> bool:
        return _since(name, first)

    new_names, old_names = since("0.5.12"), not since("0.5.21")
    return Release(
        name=name,
        version=parse_version(name),
        window_option="speculative-draft-window-size"
        if new_names
        else "speculative-dflash-draft-window-size",
        window_field="speculative_draft_window_size" if new_names else "speculative_dflash_draft_window_size",
        honours_layer_windows=since("0.5.14"),
        spec_v2=since("0.5.14"),
        registers_algorithms=new_names,
        dflash_on_cpu_refused=since("0.5.16"),
        dflash_with_dp_attention=since("0.5.23"),
        draft_backends=("flashinfer", "fa3", "fa4", "triton")
        + (("ascend",) if since("0.5.13") else ())
        + (("trtllm_mha",) if since("0.5.17") else ())
        + (("intel_xpu",) if since("0.5.20") else ()),
        explicit_causal=since("0.5.18"),
        draft_pool_by_geometry=since("0.5.18"),
        ready_endpoint=since("0.5.20"),
        get_load_endpoint=old_names,
        return_meta_info=since("0.5.13"),
        graph_memory_by_phase=since("0.5.17"),
        meta_accepted=_names(new_names, "spec_num_correct_drafts", old_names, "spec_accepted_drafts"),
        meta_proposed=_names(new_names, "spec_num_proposed_drafts", old_names, "spec_proposed_drafts"),
        meta_histogram=_names(new_names, "spec_correct_drafts_histogram", old_names, "spec_accept_histogram"),
    )


def _names(has_new: bool, new: str, has_old: bool, old: str) -> tuple[str, ...]:
    return ((new,) if has_new else ()) + ((old,) if has_old else ())


def releases() -> tuple[str, ...]:
    """Every release of the table, oldest first."""
    return option_table().releases


@functools.cache
def release(version: str) -> Release:
    """The facts for ``version``.

    A post or development release, or a newer one than the table knows, is treated as the nearest known one
    and says so in ``notes``. Raises ConfigError for something that is no version, RefusedError for a release
    before the first with DFLASH.
    """
    asked = parse_version(version)
    known = releases()
    if asked.order < parse_version(FIRST).order:
        raise RefusedError(
            f"SGLang {asked.text} is too old: DFLASH came with {FIRST}",
            next_step=f"install a release from {FIRST} to {known[-1]} on the host",
        )
    name = [r for r in known if parse_version(r).order <= asked.order][-1]
    notes = []
    if asked.unreleased:
        notes.append(
            f"SGLang {asked.text} is a development build: treated as {name}; "
            "what it really takes may differ ('hosts check' reads it from the host)"
        )
    elif asked.order > parse_version(known[-1]).order:
        notes.append(
            f"SGLang {asked.text} is newer than the newest known here ({known[-1]}) and is treated as that"
        )
    elif asked.base != name:
        notes.append(f"SGLang {asked.text} is not in the table and is treated as {name}")
    if asked.local:
        notes.append(f"'+{asked.local}' marks a local build: it may have been changed by hand")
    return replace(_facts(name), version=asked, notes=tuple(notes))
