"""What two resolved profiles differ in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_backend.core.profile import Profile
from dflash_backend.profiles.file import spell_env

FIELDS = (
    "program", "target", "drafter", "algorithm", "window", "budget", "topk", "block_size",
    "ready_timeout_s", "stop_grace_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting; None: not set. ``name`` is ``options.NAME`` or ``env.NAME`` for those tables."""

    name: str
    before: str | None
    after: str | None


def settings(profile: Profile) -> dict[str, str]:
    """Every setting of a profile that has a value, as flat names and texts, in a fixed order."""
    return dict(_settings(profile))


def differences(before: Profile, after: Profile) -> tuple[Difference, ...]:
    """The settings that differ, in the order of a profile file."""
    old, new = settings(before), settings(after)
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        Difference(name=name, before=old.get(name), after=new.get(name))
        for name in sorted(names, key=_order)
        if old.get(name) != new.get(name)
    )


def _settings(profile: Profile) -> Iterator[tuple[str, str]]:
    for field in FIELDS:
        value = getattr(profile, field)
        if value is not None:
            yield field, _text(value)
    for name, option in sorted(profile.options.items()):
        yield f"options.{name}", _text(option)
    if profile.extra:
        yield "extra", " ".join(profile.extra)
    for name, content in sorted(profile.env.items()):
        yield f"env.{name}", spell_env(content)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(name: str) -> tuple[int, str]:
    head = name.partition(".")[0]
    places = (*FIELDS, "options", "extra", "env")
    return places.index(head), name
