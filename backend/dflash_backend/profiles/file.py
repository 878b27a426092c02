"""One profile file: its schema, and what a schema cannot say.

A profile is a file ``NAME.toml``. ``extends`` names another profile whose settings are taken first; then

* a plain setting replaces the inherited one;
* ``[options]`` and ``[env]`` are merged key by key; ``false`` takes an inherited key away;
* ``extra`` replaces the inherited list.

Values of ``[env]`` are texts, or references to secrets (``env:NAME``, ``file:/PATH``, ``command:PROGRAM …``)
that are read on the console's machine at launch. ``text:…`` says that what follows is to be taken as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec

from dflash_backend.config.inventory import ENV_NAME, NAME
from dflash_backend.config.locate import Key
from dflash_backend.config.toml import FileError, Problem, TomlFile, load_toml
from dflash_backend.core.profile import Algorithm, Program, SecretRef
from dflash_backend.core.text import is_secret_name, redact, sanitise

MAX_BUDGET = 4096
MAX_WINDOW = 1 << 24

_TEXT = Annotated[str, msgspec.Meta(min_length=1)]
_SECONDS = Annotated[float, msgspec.Meta(ge=1, le=86400)]
_OPTION_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_HARMLESS = re.compile(r"\d+|true|false|yes|no|on|off|", re.IGNORECASE)
_LITERAL = "text:"


class ProfileSchema(msgspec.Struct, forbid_unknown_fields=True):
    """What a profile file may hold. Times are seconds."""

    extends: _TEXT | None = None
    description: str | None = None
    program: Program | None = None
    target: _TEXT | None = None
    drafter: _TEXT | None = None
    algorithm: Algorithm | None = None
    window: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW)] | Literal["config", "off"] | None = None
    budget: Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)] | None = None
    topk: Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)] | None = None
    block_size: Annotated[int, msgspec.Meta(ge=2, le=1024)] | None = None
    options: dict[str, bool | int | float | str] = {}
    extra: list[str] | None = None
    env: dict[str, str | bool] = {}
    ready_timeout_s: _SECONDS | None = None
    stop_grace_s: _SECONDS | None = None


def load_file(path: Path, *, shipped: bool = False) -> TomlFile[ProfileSchema]:
    """Reads and checks one profile file, without what it extends. Raises FileError with every problem."""
    file = load_toml(path, ProfileSchema, what="profile", private=not shipped)
    problems = list(_problems(file, path))
    if problems:
        raise FileError(problems)
    return file


def _problems(file: TomlFile[ProfileSchema], path: Path) -> list[Problem]:
    found: list[Problem] = []

    def report(key: Key, text: str) -> None:
        found.append(file.problem(key, text))

    value = file.value
    if not NAME.fullmatch(path.stem):
        report((), f"'{_clean(path.stem)}' cannot be the name of a profile: letters, digits, . _ - only")
    if value.extends is not None and not NAME.fullmatch(value.extends):
        report(("extends",), f"'{_clean(value.extends)}' cannot be the name of a profile")
    for field in ("target", "drafter"):
        text = getattr(value, field)
        if text is not None and (not text.isprintable() or text.startswith("-")):
            report((field,), f"'{_clean(text)}' is neither a model's name nor a path")
    _check_algorithm(value, report)
    for name in value.options:
        if name.startswith("-") or "_" in name:
            better = name.lstrip("-").replace("_", "-")
            report(("options", name), f"'{_clean(name)}' is spelled '{_clean(better)}' here")
        elif not _OPTION_NAME.fullmatch(name):
            report(("options", name), f"'{_clean(name)}' cannot be the name of an option")
    for name, text in value.options.items():
        if isinstance(text, str):
            _check_word(text, ("options", name), report)
    for index, word in enumerate(value.extra or ()):
        _check_word(word, ("extra", index), report)
    for name, content in value.env.items():
        _check_env(name, content, report)
    return found


def _check_algorithm(value: ProfileSchema, report: Callable[[Key, str], None]) -> None:
    if value.algorithm is not None and value.algorithm is not Algorithm.DDTREE:
        for field in ("budget", "topk"):
            if getattr(value, field) is not None:
                report((field,), f"'{field}' belongs to algorithm DDTREE, this one says {value.algorithm}")
    if value.budget is not None and value.topk is not None and value.topk > value.budget:
        report(
            ("topk",),
            f"topk {value.topk} is over the budget of {value.budget} nodes: no tree can use so many",
        )


def _check_word(text: str, key: Key, report: Callable[[Key, str], None]) -> None:
    if "\0" in text or "\n" in text:
        report(key, "holds a line break or a NUL character")
    elif redact(text) != text:
        report(key, "looks like a secret, which must not stand in a profile: use [env] with env:NAME")


def _check_env(name: str, content: str | bool, report: Callable[[Key, str], None]) -> None:
    key: Key = ("env", name)
    if not ENV_NAME.fullmatch(name):
        report(key, f"'{_clean(name)}' cannot be the name of an environment variable (letters, digits and _)")
    if content is True:
        report(key, f"'env.{_clean(name)}' must be a text in quotes, or false to take it away, not true")
    if isinstance(content, bool):
        return
    if "\0" in content:
        report(key, f"the value of {_clean(name)} holds a NUL character")
    try:
        parsed = parse_env(content)
    except ValueError as error:
        report(key, f"{_clean(name)}: {error}")
        return
    if isinstance(parsed, str) and _may_be_secret(name, parsed):
        report(
            key,
            f"{_clean(name)} looks like a secret, which must not stand in a profile: refer to it as "
            f'"env:{_clean(name)}", "file:/PATH" or "command:PROGRAM …"',
        )


def _may_be_secret(name: str, value: str) -> bool:
    if _HARMLESS.fullmatch(value):
        return False
    return is_secret_name(name) or redact(f"{name}={value}") != f"{name}={value}"


def parse_env(content: str) -> str | SecretRef:
    """The value of an ``[env]`` entry. Raises ValueError, saying what is wrong with a reference."""
    scheme, colon, target = content.partition(":")
    if content.startswith(_LITERAL):
        return content.removeprefix(_LITERAL)
    if not colon or scheme not in ("env", "file", "command"):
        return content
    if scheme == "env" and not ENV_NAME.fullmatch(target):
        raise ValueError(f"'{_clean(target)}' cannot be the name of an environment variable")
    if scheme == "file" and not target.startswith(("/", "~/")):
        raise ValueError(f"'{_clean(target)}' must be a path from the root (file:/…) or from home (file:~/…)")
    if scheme == "command":
        try:
            words = shlex.split(target)
        except ValueError:
            raise ValueError(f"'{_clean(target)}' has unbalanced quotes") from None
        if not words:
            raise ValueError("'command:' names no program")
    return SecretRef(scheme=cast("Literal['env', 'file', 'command']", scheme), target=target)


def spell_env(content: str | SecretRef) -> str:
    """The inverse of ``parse_env``."""
    if isinstance(content, SecretRef):
        return str(content)
    plain = content.partition(":")[0] not in ("env", "file", "command", "text") or ":" not in content
    return content if plain else _LITERAL + content


def _clean(text: str) -> str:
    return sanitise(text, multiline=False, limit=80)
