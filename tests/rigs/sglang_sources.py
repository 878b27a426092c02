"""The sources of every SGLang release, out of their wheels: found in a cache or downloaded with pip.

Nothing of them is stored in the repository. Only the files that the audit wants are unpacked, in memory.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_backend.audit.inputs import MemoryTree
from dflash_backend.audit.trees import open_source

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("DFLASH_RIGS", ROOT / ".cache")) / "sglang-wheels"
_ENVIRONMENT = dict(os.environ)
"""As it was before a test replaced HOME: pip finds its own settings by it."""


def wheel(release: str) -> Path:
    """The wheel of a release; skips the test with the reason when it cannot be had."""
    found = _find(release)
    if isinstance(found, str):
        if os.environ.get("DFLASH_REQUIRE_RIGS"):
            pytest.fail(found)
        pytest.skip(found)
    return found


@functools.cache
def _find(release: str) -> Path | str:
    name = f"sglang-{release}-*.whl"
    have = sorted(CACHE.glob(name))
    if have:
        return have[0]
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
        "--platform", "manylinux_2_34_x86_64", "--timeout", "20", "--retries", "1",
        "--dest", str(CACHE), f"sglang=={release}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, env=_ENVIRONMENT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the wheel of SGLang {release} cannot be downloaded: {error}"
    have = sorted(CACHE.glob(name))
    last = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
    return have[0] if have else f"the wheel of SGLang {release} cannot be downloaded: {last[:200]}"


@functools.cache
def _tree(release: str) -> MemoryTree:
    tree = open_source(wheel(release))
    assert isinstance(tree, MemoryTree)
    return MemoryTree(f"sglang-{release}.whl", tree.files)


def stock(release: str) -> MemoryTree:
    """The tree of a release as it was published."""
    return _tree(release)


def patched(release: str, *edits: tuple[str, str, str], extra: dict[str, bytes] | None = None) -> MemoryTree:
    """A tree changed by hand: each edit is (path below sglang/srt, old text, new text), once and present.

    An empty old text appends the new one to the file.
    """
    files = dict(_tree(release).files)
    for path, old, new in edits:
        name = f"sglang/srt/{path}"
        text = files[name].decode()
        if old:
            assert text.count(old) >= 1, f"{name} of {release} has no {old!r}"
            text = text.replace(old, new, 1)
        else:
            text += "\n" + new
        files[name] = text.encode()
    files.update(extra or {})
    return MemoryTree(f"sglang-{release} changed by hand", files)
