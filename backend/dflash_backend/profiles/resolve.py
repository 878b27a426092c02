"""From a chain of profile files to one profile: merging, what an algorithm does not use, the digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from dflash_backend.config.locate import Key
from dflash_backend.config.toml import FileError, Problem, TomlFile
from dflash_backend.core.profile import Algorithm, OptionValue, Profile, Program, SecretRef
from dflash_backend.profiles.file import ProfileSchema, parse_env, spell_env

Chain = Sequence[TomlFile[ProfileSchema]]
"""A profile file, then what it extends, and so on to the root."""
V = TypeVar("V")

_DEFAULT_READY_S = 1800.0
_DEFAULT_GRACE_S = 60.0


def merge(name: str, chain: Chain, *, shipped: bool) -> Profile:
    """One profile from a chain of files (see ``profiles.file`` for the rules).

    Settings that the algorithm has no use for are dropped, so that a profile without speculation may extend
    one with it. Raises FileError when something needed is nowhere in the chain.
    """
    options: dict[str, OptionValue] = {}
    env: dict[str, str | SecretRef] = {}
    for file in reversed(chain):
        options.update(file.value.options)
        for key, content in file.value.env.items():
            if isinstance(content, str):
                env[key] = parse_env(content)
            else:
                env.pop(key, None)
    own = chain[0]
    algorithm = _first(chain, lambda f: f.algorithm) or Algorithm.NONE
    drafter = _first(chain, lambda f: f.drafter)
    target = _first(chain, lambda f: f.target)
    if target is None or (algorithm is not Algorithm.NONE and drafter is None):
        raise FileError(_missing(chain, target, algorithm, drafter))
    speculates = algorithm is not Algorithm.NONE
    tree = algorithm is Algorithm.DDTREE
    profile = Profile(
        name=name,
        description=_first(chain, lambda f: f.description) or "",
        program=_first(chain, lambda f: f.program) or Program.SGLANG,
        target=target,
        drafter=drafter if speculates else None,
        algorithm=algorithm,
        window=(_first(chain, lambda f: f.window) or "config") if speculates else "config",
        budget=_first(chain, lambda f: f.budget) if tree else None,
        topk=_first(chain, lambda f: f.topk) if tree else None,
        block_size=_first(chain, lambda f: f.block_size) if speculates else None,
        options=options,
        extra=tuple(_first(chain, lambda f: f.extra) or ()),
        env=env,
        ready_timeout_s=_first(chain, lambda f: f.ready_timeout_s) or _DEFAULT_READY_S,
        stop_grace_s=_first(chain, lambda f: f.stop_grace_s) or _DEFAULT_GRACE_S,
        origin=own.path,
        shipped=shipped,
    )
    return replace(profile, digest=digest(profile))


def digest(profile: Profile) -> str:
    """SHA-256 over everything that the launched process sees; name, description and times are left out."""
    content = {
        "program": profile.program,
        "target": profile.target,
        "drafter": profile.drafter,
        "algorithm": profile.algorithm,
        "window": profile.window,
        "budget": profile.budget,
        "topk": profile.topk,
        "block_size": profile.block_size,
        "options": dict(profile.options),
        "extra": profile.extra,
        "env": {name: spell_env(content) for name, content in profile.env.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _first(chain: Chain, get: Callable[[ProfileSchema], V | None]) -> V | None:
    return next((value for file in chain if (value := get(file.value)) is not None), None)


def _missing(chain: Chain, target: str | None, algorithm: Algorithm, drafter: str | None) -> list[Problem]:
    own = chain[0]
    also = " (nor does what it extends)" if len(chain) > 1 else ""
    problems = []
    if target is None:
        problems.append(own.problem((), f"the profile names no 'target' model{also}"))
    if algorithm is not Algorithm.NONE and drafter is None:
        key: Key = ("algorithm",) if own.value.algorithm else ("extends",)
        problems.append(
            own.problem(key, f"algorithm {algorithm} needs a 'drafter'; the profile names none{also}")
        )
    return problems
