"""The entry point in the group ``sglang.srt.plugins``: runs early in every process of a server.

SGLang logs and swallows what a plugin raises, and goes on without its hooks. A window that silently becomes
full attention is what this plugin is there to end, so nothing is raised here: a reason not to serve DFLASH
is kept, and the guard on SGLang's server arguments raises it when, and only when, a server with DFLASH
starts.
"""

from __future__ import annotations

import logging
import os
from importlib import metadata
from pathlib import Path

from . import copies, hooks, releases, sources

SWITCH = "DFLASH_SGLANG_WINDOWS"
_logger = logging.getLogger("dflash_sglang")


def register() -> None:
    """Hooks SGLang as this release needs it, or arranges that DFLASH does not start."""
    if hooks.STATE is not None:
        return
    try:
        state = decide()
    except Exception as error:  # anything unforeseen must end in a refusal, not in a swallowed exception
        _logger.exception("dflash-sglang could not examine this SGLang")
        state = hooks.State(release="unknown", refusal=f"SGLang could not be examined: {error!r}")
    hooks.install(state)


def decide() -> hooks.State:
    """What to do on the installed SGLang, without importing it."""
    release = metadata.version("sglang")
    switch = os.environ.get(SWITCH, "").strip().lower()
    if switch not in ("", "on", "off"):
        return hooks.State(release, refusal=f"{SWITCH} is {switch!r}; it takes on or off")
    known = sources.table().get(release)
    if known is None:
        reason = (
            f"SGLang {release} is not among the releases this plugin knows "
            f"({releases.PATCHED[0]} to {releases.VERIFIED[-1]}): install the plugin's next version"
        )
        return hooks.State(release, off=switch == "off", refusal=None if switch == "off" else reason)
    names = releases.hooked(release)
    different = sources.differences(known, (*names, *releases.relied_upon(release)))
    if different:
        reason = f"the installed source is not SGLang {release}'s: " + "; ".join(different)
        return hooks.State(release, off=switch == "off", refusal=None if switch == "off" else reason)
    if switch == "off":
        return hooks.State(release, off=True, known=known)
    return hooks.State(release, known=known, refusal=copies.problem(Path(__file__).parent))
