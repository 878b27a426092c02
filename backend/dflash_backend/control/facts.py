"""What a plan has to know of a host: SGLang's version, the plugin, the GPUs. Asked once, kept a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dflash_backend.core.clock import Clock, wall

_KEEP_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of one host. ``sglang_version`` None: not installed in the interpreter that would launch it."""

    host: str
    python: str
    python_ok: bool = True
    python_note: str = ""
    sglang_version: str | None = None
    sglang_note: str = ""
    plugin_features: frozenset[str] = frozenset()
    compute_capability: tuple[int, int] | None = None
    gpu_count: int | None = None
    options: frozenset[str] | None = None
    """Long option names that the installed SGLang's source declares; None where it could not be read."""


class FactsCache:
    """Facts by host; asks again after five minutes or after :meth:`forget`."""

    def __init__(self, ask: Callable[[str], Awaitable[HostFacts]], clock: Clock = wall) -> None:
        self._ask = ask
        self._clock = clock
        self._known: dict[str, tuple[float, HostFacts]] = {}

    async def get(self, host: str) -> HostFacts:
        """The facts of a host. Raises what the connection raises."""
        kept = self._known.get(host)
        if kept is not None and self._clock() - kept[0] < _KEEP_S:
            return kept[1]
        facts = await self._ask(host)
        self._known[host] = (self._clock(), facts)
        return facts

    def forget(self, host: str) -> None:
        """Drops what is known, after something was installed there."""
        self._known.pop(host, None)
