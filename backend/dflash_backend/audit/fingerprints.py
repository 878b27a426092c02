"""Which release a tree is: the files that decide about windows, compared with those of every release.

The hashes are facts about the releases, written by ``scripts/source_fingerprints.py``; no source is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

FINGERPRINTED: tuple[str, ...] = (
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/srt/speculative/dflash_worker.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
    "sglang/srt/speculative/dflash_info.py",
    "sglang/srt/speculative/dflash_info_v2.py",
    "sglang/srt/layers/radix_attention.py",
    "sglang/srt/layers/attention/triton_backend.py",
    "sglang/srt/layers/attention/flashinfer_backend.py",
    "sglang/srt/layers/attention/flashattention_backend.py",
    "sglang/srt/layers/attention/trtllm_mha_backend.py",
    "sglang/srt/model_executor/model_runner.py",
    "sglang/srt/model_executor/model_runner_components/load_model_utils.py",
    "sglang/srt/server_args.py",
    "sglang/srt/arg_groups/speculative_hook.py",
)
"""Files that decide what a draft layer attends to, and what the window flag does."""

CORE: tuple[str, ...] = (FINGERPRINTED[0], FINGERPRINTED[1], FINGERPRINTED[6], FINGERPRINTED[11])
"""Without these no tree is said to be a stock release."""

LENGTH = 32
"""Hexadecimal digits kept of a SHA-256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a tree is. ``release`` is the nearest one; ``changed`` are the files that differ from it."""

    kind: Literal["stock", "hand-patched", "unknown"]
    release: str | None = None
    changed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For people: ``stock 0.5.14``, ``0.5.14 changed by hand (dflash.py)``, ``an unknown tree``."""
        if self.kind == "stock":
            return f"stock {self.release}"
        if self.kind == "unknown":
            return "an unknown tree"
        names = ", ".join(path.rsplit("/", 1)[-1] for path in self.changed[:4])
        more = f" and {len(self.changed) - 4} more" if len(self.changed) > 4 else ""
        return f"hand-patched: {release_name(self.release)} except for {names}{more}"


def release_name(release: str | None) -> str:
    """A release for people."""
    return release or "an unknown release"


def fingerprint(data: bytes) -> str:
    """The hash of a file as it is kept here."""
    return hashlib.sha256(data).hexdigest()[:LENGTH]


@functools.cache
def known() -> Mapping[str, Mapping[str, str]]:
    """File hashes by release and path."""
    text = resources.files("dflash_backend.audit").joinpath("stock_sources.json").read_text("utf-8")
    return {release: dict(files) for release, files in json.loads(text)["releases"].items()}


def identify(files: Mapping[str, bytes], release: str | None) -> Identity:
    """Compares what was read with every release; ``release`` is what the tree says of itself."""
    found = {path: fingerprint(data) for path, data in files.items() if path in FINGERPRINTED}
    if any(path not in found for path in CORE):
        return Identity(kind="unknown")
    differing = {name: _differences(found, stock) for name, stock in known().items()}
    equal = [name for name, changed in differing.items() if not changed]
    if equal:
        return Identity(kind="stock", release=release if release in equal else equal[-1])
    nearest = min(differing, key=lambda name: (len(differing[name]), name != release))
    if len(differing[nearest]) > len(found) // 2 and release not in differing:
        return Identity(kind="unknown")
    name = release if release in differing else nearest
    assert name is not None
    if len(differing[name]) > len(found) // 2 and name != nearest:
        name = nearest
    if len(differing[name]) == len(found):
        return Identity(kind="unknown", release=name)
    return Identity(kind="hand-patched", release=name, changed=tuple(differing[name]))


def _differences(found: Mapping[str, str], stock: Mapping[str, str]) -> list[str]:
    return [path for path, digest in found.items() if stock.get(path) != digest]
