"""What every route needs: the loop, the tokenizer, the arguments and the phase of the server."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from dflash_engine.api import LayerWindow, ModelInfo, Tokenizer
from dflash_engine.server.args import ServerArgs
from dflash_engine.server.loop import EngineLoop
from dflash_engine.server.metrics import Metrics


class Phase(enum.StrEnum):
    """Phase of the server, as /health and /server_info tell it."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(slots=True)
class ServerContext:
    """Shared by all routes; only ``phase`` changes after start-up."""

    args: ServerArgs
    loop: EngineLoop
    metrics: Metrics
    tokenizer: Tokenizer
    target: ModelInfo
    drafter: ModelInfo | None
    block_size: int | None
    context_length: int
    version: str
    phase: Phase = Phase.STARTING
    created: float = field(default_factory=time.time)
    startup_s: float = 0.0


def layer_windows(layers: tuple[LayerWindow, ...]) -> list[dict[str, object]]:
    """Layer windows as JSON."""
    return [
        {"layer": one.layer, "declared": one.declared, "window": one.window, "causal": one.causal}
        for one in layers
    ]
