"""Asked against granted: the profile beside what the running server says of itself."""

from __future__ import annotations

from dflash_backend.control.contract import Granted
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.core.samples import EffectiveSettings


def compare(profile: Profile, settings: EffectiveSettings) -> tuple[Granted, ...]:
    """One row per setting that the profile asks for; ``granted`` None means the server does not tell."""
    rows = [_row("algorithm", str(profile.algorithm), settings.algorithm and str(settings.algorithm))]
    if profile.algorithm is not Algorithm.NONE:
        if isinstance(profile.window, int):
            rows.append(_row("window", str(profile.window), _text(settings.window)))
        if profile.block_size is not None:
            rows.append(_row("block size", str(profile.block_size), _text(settings.block_size)))
    if profile.algorithm is Algorithm.DDTREE:
        if profile.budget is not None:
            rows.append(_row("budget", str(profile.budget), _text(settings.budget)))
        if profile.topk is not None:
            rows.append(_row("topk", str(profile.topk), _text(settings.topk)))
    for name, asked in profile.options.items():
        key = name.replace("-", "_")
        if key == "max_running_requests":
            rows.append(_row(name, str(asked), _text(settings.max_running_requests)))
        elif key in settings.raw:
            rows.append(_row(name, str(asked), _text(settings.raw[key])))
    return tuple(rows)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _row(name: str, asked: str, granted: str | None) -> Granted:
    return Granted(name=name, asked=asked, granted=granted, ok=granted is not None and _same(asked, granted))


def _same(asked: str, granted: str) -> bool:
    if asked.casefold() == granted.casefold():
        return True
    try:
        return float(asked) == float(granted)
    except ValueError:
        return False
