"""A small original set of prompts, written for this project: code and prose, some not in English.

Real text, because random tokens understate acceptance and repeated text overstates it. Warm-up has prompts
of its own, so that nothing measured was ever in a cache.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Literal

BuiltinSet = Literal["mixed", "code", "prose"]
_SEPARATOR = "\n%%\n"


@functools.cache
def _read(name: str) -> tuple[str, ...]:
    file = resources.files("dflash_backend.bench") / "builtin" / f"{name}.txt"
    return tuple(file.read_text(encoding="utf-8").rstrip("\n").split(_SEPARATOR))


def builtin(name: BuiltinSet) -> tuple[str, ...]:
    """The prompts of a set; ``mixed`` takes code and prose in turn."""
    if name == "mixed":
        return tuple(text for pair in zip(_read("code"), _read("prose"), strict=True) for text in pair)
    return _read(name)


def warm_up() -> tuple[str, ...]:
    """Prompts that are asked before measuring and never measured."""
    return _read("warm-up")


def digest(prompts: Sequence[str]) -> str:
    """SHA-256 over the prompts: two runs with one digest asked the same."""
    hasher = hashlib.sha256()
    for prompt in prompts:
        data = prompt.encode("utf-8", "replace")
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.hexdigest()


def with_nonce(prompt: str, nonce: str) -> str:
    """The prompt with something new in front, so that no prefix of it is in any cache."""
    return f"[{nonce}] {prompt}"
