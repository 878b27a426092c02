"""Options that open a door: marked in every plan, and launched only after a confirmation of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dflash_backend.core.profile import OptionValue, Profile
from dflash_backend.core.text import REDACTED
from dflash_backend.sglang.command import Draft

_DANGEROUS = {
    "trust-remote-code": "runs Python code that comes with the model",
    "custom-sigquit-handler": "runs code named on the command line",
    "forward-hooks": "runs code named on the command line",
    "enable-custom-logit-processor": "runs code that clients send",
    "config": "reads more options from a file on the host, which nothing here checks",
    "tool-server": "lets the model call tools",
}
_LOAD_FORMATS = {
    "pt": "unpickles files of the model, which may run code",
    "remote": "fetches weights from another machine",
    "remote_instance": "fetches weights from another machine",
    "private": "loads weights by code outside SGLang",
    "runai_streamer": "fetches weights from an object store",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECRET_OPTIONS = ("api-key", "admin-api-key", "ssl-keyfile-password")
"""Options whose value is a secret; SGLang reads them from the command line only."""


def mark_hazards(draft: Draft, profile: Profile, bound: OptionValue) -> None:
    """Warns about each dangerous option of ``profile`` and refuses secrets on the command line."""
    given: dict[str, OptionValue] = dict(profile.options)
    for name, word in _named(profile.extra):
        given[name] = True if word is None else word
    if str(bound) not in _LOOPBACK:
        draft.warn(
            f"host {bound}: the server can be reached from the network and asks for no key; "
            "the console needs 127.0.0.1 only",
            dangerous=True,
        )
    for name, value in given.items():
        if value is False:
            continue
        if name in _DANGEROUS:
            draft.warn(f"{name} {_DANGEROUS[name]}", dangerous=True)
        elif name.endswith("load-format") and value in _LOAD_FORMATS:
            draft.warn(f"{name} {value} {_LOAD_FORMATS[str(value)]}", dangerous=True)
        elif name in SECRET_OPTIONS:
            draft.refuse(
                f"{name} would stand on the command line, where every user of the host can read it",
                "leave it out and let the server listen on 127.0.0.1, which the console reaches by SSH",
                about=("options", name),
            )


def _named(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Option names among ``words`` with their first value, if they have one."""
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[index + 1] if index + 1 < len(words) else "--"
            yield name, value if equals else None if following.startswith("--") else following


def without_secrets(words: Sequence[str]) -> list[str]:
    """``words`` with the value of every secret option replaced: even a refused command can be shown."""
    shown: list[str] = []
    hide = False
    for word in words:
        name, equals, _ = word.removeprefix("--").partition("=")
        if hide and not word.startswith("--"):
            word, hide = REDACTED, False
        elif word.startswith("--") and name in SECRET_OPTIONS:
            hide = not equals
            word = f"--{name}={REDACTED}" if equals else word
        else:
            hide = False
        shown.append(word)
    return shown
