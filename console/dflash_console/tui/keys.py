"""Keys of actions: bindings, names as people write them, and what is wrong with a user's keymap."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from textual.binding import Binding

from dflash_console.tui.actions import BY_ID, SCREENS, ActionSpec, actions_in


def bindings_in(screen: str) -> list[Binding]:
    """Bindings of one screen; their ids are what the user's keymap names."""
    return [
        Binding(
            spec.key,
            f"act('{spec.id}')",
            spec.title,
            show=False,
            id=spec.id,
        )
        for spec in actions_in(screen)
    ]


_KEY_NAMES = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "escape": "esc",
    "enter": "enter",
    "tab": "tab",
    "comma": ",",
    "full_stop": ".",
    "space": "space",
}


def key_text(keys: str) -> str:
    """The first of some keys as people write it: ``?``, ``esc``, ``^q``."""
    key = keys.split(",")[0].strip()
    if key.startswith("ctrl+"):
        return f"^{_KEY_NAMES.get(key[5:], key[5:])}"
    return _KEY_NAMES.get(key, key)


def keys_of(spec: ActionSpec, keymap: Mapping[str, str]) -> str:
    """The keys of an action after the user's keymap."""
    return keymap.get(spec.id) or spec.key


def check_keymap(keymap: Mapping[str, str]) -> Iterable[str]:
    """What is wrong with a keymap, in words: unknown actions with the nearest name, keys used twice."""
    for name in keymap:
        if name not in BY_ID:
            near = difflib.get_close_matches(name, BY_ID, 1)
            yield f"keymap: no action is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    for screen in SCREENS:
        taken: dict[str, str] = {}
        for spec in actions_in(screen):
            for key in map(str.strip, keys_of(spec, keymap).split(",")):
                other = taken.setdefault(key, spec.id)
                if other != spec.id and (spec.id in keymap or other in keymap):
                    yield f"keymap: {key_text(key)!r} is both {other!r} and {spec.id!r} on screen {screen!r}"
