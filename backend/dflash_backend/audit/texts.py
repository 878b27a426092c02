"""Real text to measure with: Python source files (PSF licence) that ship with the reference pair."""

from __future__ import annotations

import functools
import json
from importlib import resources

from dflash_backend.core.errors import FailedError


@functools.cache
def corpus() -> str:
    """The longest piece of every file, one after the other: some 90,000 characters. Raises FailedError."""
    file = resources.files("dflash_engine") / "data" / "reference_pair" / "prompts.json"
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["prompts"]
    except (OSError, ValueError, KeyError) as error:
        raise FailedError(f"the texts to measure with cannot be read: {error}", where=str(file)) from error
    longest: dict[str, str] = {}
    for entry in entries:
        if len(entry["text"]) > len(longest.get(entry["file"], "")):
            longest[entry["file"]] = entry["text"]
    return "\n\n".join(text.strip("\n") + "\n" for text in longest.values() if len(text) > 1000)
