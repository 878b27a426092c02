"""The small trained target and drafter that come with the project, and held-out prompts for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .api import EngineConfigError

FOLDER = Path(__file__).parent / "data" / "reference_pair"
TARGET = FOLDER / "target"
DRAFTER = FOLDER / "drafter"
PROMPTS = FOLDER / "prompts.json"
EVALUATION = FOLDER / "evaluation.json"


@dataclass(frozen=True, slots=True)
class HeldOutPrompt:
    """The beginning of a file that was not trained on; ``context_tokens`` long in the pair's tokens."""

    file: str
    context_tokens: int
    text: str


def read_prompts(path: Path = PROMPTS) -> tuple[HeldOutPrompt, ...]:
    """Prompts of a file like prompts.json. ``EngineConfigError`` for a file that is not."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["prompts"]
        return tuple(
            HeldOutPrompt(str(e["file"]), int(e["context_tokens"]), _text(e["text"])) for e in entries
        )
    except OSError as error:
        raise EngineConfigError("prompts", f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineConfigError("prompts", f"not a prompts file: {error!r}", where=str(path)) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text must be a string")
    return value
