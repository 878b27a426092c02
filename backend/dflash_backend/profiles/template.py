"""Writes a new profile: a commented file that extends another one, for the user to change."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_backend.config.inventory import NAME
from dflash_backend.core.errors import ConfigError, FailedError, UsageError
from dflash_backend.core.paths import ensure_dir
from dflash_backend.core.profile import Algorithm, Profile
from dflash_backend.profiles.serialise import toml_value
from dflash_backend.profiles.store import ProfileStore


def new_profile(store: ProfileStore, name: str, *, base: str | None = None) -> Path:
    """Writes ``NAME.toml`` into the user's folder and returns its path; never overwrites.

    ``base`` is the profile to extend; without it the file starts from nothing. Raises UsageError for a bad
    name or base, ConfigError when the file is already there, FailedError when it cannot be written.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be the name of a profile",
            next_step="letters, digits, . _ -, at most 64, a letter or digit first",
        )
    text = _extending(store.load(base)) if base is not None else _FROM_NOTHING
    path = store.user_folder / f"{name}.toml"
    _create(path, text)
    return path


def _create(path: Path, text: str) -> None:
    """Creates a 0600 file in one step: it is there with all of its text, or it is not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        ensure_dir(path.parent)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            # A link fails where the name is taken; a rename would replace it.
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except FileExistsError:
        raise ConfigError(
            "there is already a profile of this name",
            where=str(path),
            unchanged="the file is as it was",
            next_step="choose another name or edit that file",
        ) from None
    except OSError as error:
        raise FailedError(
            f"cannot be written: {error.strerror}", where=str(path), unchanged="no profile was added"
        ) from None


def _extending(base: Profile) -> str:
    window = toml_value(base.window)
    lines = [
        f"# Begins with everything that {base.name} says; what stands here replaces it.",
        f"extends = {toml_value(base.name)}",
        f"description = {toml_value(base.description)}",
        "",
        "# As inherited; take the # away to change.",
        f"# target = {toml_value(base.target)}",
        f"# drafter = {toml_value(base.drafter or 'path or name of a DFlash drafter')}",
        f"# algorithm = {toml_value(base.algorithm.value)}        # NONE, DFLASH (chain) or DDTREE",
        f'# window = {window}          # "config": as the drafter\'s config.json says; "off"; or tokens',
    ]
    if base.algorithm is Algorithm.DDTREE:
        lines.append(
            f"# budget = {base.budget or 16}               # nodes of the draft tree, root not counted"
        )
        lines.append(f"# topk = {base.topk or 8}                  # candidates per position")
    lines += ["", "[options]                    # SGLang's options without the dashes; false takes one away"]
    lines += [f"# {name} = {toml_value(value)}" for name, value in base.options.items()]
    lines += [
        "",
        "[env]                        # texts, or secrets as env:NAME, file:/PATH, command:PROGRAM …",
    ]
    lines += ['# HF_TOKEN = "env:HF_TOKEN"', ""]
    return "\n".join(lines)


_FROM_NOTHING = """\
description = ""
# What is launched: "sglang" or "reference-engine".
program = "sglang"
# Name on the Hugging Face hub, or a path on the host.
target = "Qwen/Qwen3-8B"

# NONE, DFLASH (chain) or DDTREE (tree; needs a patched SGLang).
algorithm = "NONE"
# drafter = "z-lab/Qwen3-8B-DFlash-b16"
# The drafter's window: "config" (as its config.json says), "off", or a number of tokens.
# window = "config"
# For DDTREE: nodes of the draft tree (root not counted) and candidates per position.
# budget = 16
# topk = 8

# Seconds until a start counts as failed, and between TERM and KILL at a stop.
ready_timeout_s = 1800
stop_grace_s = 60

# SGLang's options without the dashes.
[options]
mem-fraction-static = 0.85

# Texts, or references to secrets: env:NAME, file:/PATH, command:PROGRAM ARGUMENT…
[env]
# HF_TOKEN = "env:HF_TOKEN"
"""
