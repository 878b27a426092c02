"""Launch options of SGLang by release, as read from the releases themselves.

``options.json`` is written by ``scripts/sglang_options.py`` from the wheels' sources: one entry per option
name and one segment per stretch of releases in which it means the same.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option in a stretch of releases. ``name`` has no dashes in front.

    ``kind``: ``flag`` (no value), ``toggle`` (``--x`` and ``--no-x``), ``int``, ``count`` (also ``64k``,
    ``4Ki``), ``float``, ``str``, ``json``, ``list-…`` (one or more values), ``optional-…`` (value may be left
    out). ``choices`` is None where the release decides at run time. ``replacement`` is what a deprecated
    option tells to use (``--new`` or ``--new=value``), empty when it names none.
    """

    name: str
    first: str
    last: str
    field: str
    kind: str
    choices: tuple[str | int | float, ...] | None = None
    alias: str | None = None
    deprecated: bool = False
    replacement: str = ""
    hidden: bool = False
    retired: bool = False
    """The release knows the name only to stop the launch with an explanation."""


class _Segment(msgspec.Struct, forbid_unknown_fields=True):
    first: str
    last: str
    kind: str
    field: str = ""
    choices: list[str | int | float | bool | None] | None = None
    alias: str | None = None
    deprecated: str | bool = False
    hidden: bool = False
    retired: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    releases: list[str]
    options: dict[str, list[_Segment]]


def _option(name: str, segment: _Segment) -> Option:
    return Option(
        name=name,
        first=segment.first,
        last=segment.last,
        field=segment.field or name.replace("-", "_"),
        kind=segment.kind,
        choices=tuple(c for c in segment.choices if c is not None) if segment.choices else None,
        alias=segment.alias,
        deprecated=bool(segment.deprecated),
        replacement=segment.deprecated if isinstance(segment.deprecated, str) else "",
        hidden=segment.hidden,
        retired=segment.retired,
    )


class OptionTable:
    """All options of all known releases."""

    def __init__(self, releases: Iterable[str], options: Mapping[str, tuple[Option, ...]]) -> None:
        self.releases = tuple(releases)
        self._options = options
        self._order = {release: index for index, release in enumerate(self.releases)}
        self._at: dict[str, dict[str, Option]] = {}

    def at(self, release: str) -> Mapping[str, Option]:
        """Option name -> facts in one release. Raises KeyError for a release that is not in the table."""
        if release not in self._at:
            place = self._order[release]
            self._at[release] = {
                name: segment
                for name, segments in self._options.items()
                for segment in segments
                if self._order[segment.first] <= place <= self._order[segment.last]
            }
        return self._at[release]

    def names(self) -> tuple[str, ...]:
        """Every option name of every release."""
        return tuple(self._options)

    def history(self, name: str) -> tuple[Option, ...]:
        """Every stretch of releases that knows ``name``, oldest first; empty for a name never known."""
        return self._options.get(name, ())

    def span(self, name: str) -> tuple[str, str] | None:
        """First and last release that know ``name``."""
        history = self.history(name)
        return (history[0].first, history[-1].last) if history else None

    def spelling(self, name: str, release: str) -> tuple[str, str | None] | None:
        """How ``release`` spells the option ``name``, which may be the spelling of another release.

        Returns (name there, fixed value or None): the value is set when that release spells a bare flag as
        an option with a value (``disable-piecewise-cuda-graph`` became ``cuda-graph-backend-prefill``
        ``disabled``). None when the release has no such thing. Only renames that keep the meaning are
        followed: both names must set the same field.
        """
        here = self.at(release)
        if name in here:
            return name, None
        for segment in self.history(name):
            target, _, value = segment.replacement.removeprefix("--").partition("=")
            if segment.alias:
                target = segment.alias
            found = here.get(target)
            if found and found.field == segment.field:
                return target, value or None
        for other, found in here.items():
            if self._stands_for(other, found, name):
                return other, None
        return None

    def _stands_for(self, other: str, found: Option, name: str) -> bool:
        """True when a later release says that ``other`` is an old spelling of ``name``."""
        return any(
            (segment.alias == name or segment.replacement == f"--{name}")
            and segment.kind == found.kind
            and any(new.field == segment.field for new in self.history(name))
            for segment in self.history(other)
        )

    def flag_for(self, name: str, value: object, release: str) -> str | None:
        """The bare flag by which ``release`` says ``--name value``, if it has only that."""
        wanted = f"--{name}={value}"
        here = self.at(release)
        if name in here:
            return None
        for other in here:
            if any(s.replacement == wanted for s in self.history(other)):
                return other
        return None

    def nearest(self, name: str, release: str) -> str | None:
        """The most similar option that ``release`` shows in its help."""
        shown = [n for n, o in self.at(release).items() if not o.hidden]
        matches = difflib.get_close_matches(name, shown, n=1, cutoff=0.7)
        return matches[0] if matches else None


@functools.cache
def option_table() -> OptionTable:
    """The table that ships with the console."""
    data = resources.files(__package__).joinpath("options.json").read_bytes()
    file = msgspec.json.decode(data, type=_File)
    return OptionTable(
        file.releases,
        {name: tuple(_option(name, s) for s in segments) for name, segments in file.options.items()},
    )
