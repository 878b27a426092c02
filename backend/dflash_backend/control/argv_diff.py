"""Two launch commands compared option by option: what a switch really changes."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_backend.control.contract import Change

_SET = "set"


def options_of(argv: Sequence[str]) -> dict[str, str]:
    """Options of a launch command by long name; a bare flag is "set", a repeated or listed one is joined.

    What stands before the first option (interpreter, ``-m``, module) is under the name ``program``.
    """
    options: dict[str, list[str]] = {}
    name = "program"
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            options.setdefault(name, [])
            if equals:
                options[name].append(value)
        else:
            options.setdefault(name, []).append(word)
    return {key: " ".join(values) or _SET for key, values in options.items()}


def changes_between(before: Sequence[str] | None, after: Sequence[str]) -> tuple[Change, ...]:
    """Every option that differs, in the new command's order, then those that go; all need a restart."""
    old = options_of(before) if before else {}
    new = options_of(after)
    rows = [
        Change(name=name, before=old.get(name), after=value)
        for name, value in new.items()
        if old.get(name) != value
    ]
    rows += [Change(name=name, before=value, after=None) for name, value in old.items() if name not in new]
    return tuple(rows)
