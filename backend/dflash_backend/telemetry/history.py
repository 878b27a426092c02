"""From snapshots to series and marks: the same for the live fleet and for a replay."""

from __future__ import annotations

from dflash_backend.core.samples import ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState
from dflash_backend.telemetry.series import CAPACITY, History, total

STEP_S = 0.9
"""Series have one sample per second, also when snapshots come more often."""

_ENDED = {ServerState.STOPPED: "stopped", ServerState.FAILED: "failed"}


class Chronicle:
    """Takes snapshots in order and keeps the history of every server in them."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.history = History(capacity)
        self._last: dict[str, ServerSnapshot] = {}
        self._sampled: float | None = None
        self._runs: dict[str, str | None] = {}
        self._profiles: dict[str, str | None] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Adds what is new in a snapshot. Missing figures become gaps."""
        due = self._sampled is None or not 0 <= snapshot.at - self._sampled < STEP_S
        for server in snapshot.servers:
            self._mark(server, snapshot.at)
            if due:
                self._sample(server, snapshot.at)
            self._last[server.name] = server
        if due:
            self._sampled = snapshot.at

    def _sample(self, server: ServerSnapshot, at: float) -> None:
        figures, name, add = server.figures, server.name, self.history.add
        add(name, "decode_tok_s", at, figures.decode_tok_s if figures else None)
        add(name, "accept_length", at, figures.accept_length if figures else None)
        add(name, "running", at, figures.running if figures else None)
        add(name, "queued", at, figures.queued if figures else None)
        add(name, "token_usage", at, figures.token_usage if figures else None)
        add(name, "rss_mib", at, server.rss_mib)
        for gpu in server.gpus:
            add(name, "gpu_memory_mib", at, gpu.memory_used_mib, gpu=gpu.index)
        add(name, "gpu_memory_mib", at, total(gpu.memory_used_mib for gpu in server.gpus))
        before = self._last.get(name)
        for gone in {g.index for g in before.gpus} - {g.index for g in server.gpus} if before else ():
            add(name, "gpu_memory_mib", at, None, gpu=gone)

    def _mark(self, server: ServerSnapshot, at: float) -> None:
        before = self._last.get(server.name)
        run = server.run if server.run is not None and server.run.alive else None
        if run is not None and self._runs.get(server.name) != run.run_id:
            old, new = self._profiles.get(server.name), run.profile or None
            text = f"profile {old} → {new}" if old and new and old != new else f"start {new or ''}".strip()
            self.history.mark(server.name, run.started_at or at, text)
            self._runs[server.name], self._profiles[server.name] = run.run_id, new
        if before is None:
            return
        if server.state is not before.state:
            if server.state is ServerState.READY and before.state is ServerState.STARTING:
                self.history.mark(server.name, at, "ready")
            elif server.state in _ENDED and server.run is not None:
                # "from unknown" and "from unreachable" say when it was found, not when it happened.
                self.history.mark(server.name, server.run.exited_at or at, _ENDED[server.state])
        if (
            before.settings is not None
            and server.settings is not None
            and (run is None or before.run is None or before.run.run_id == run.run_id)
        ):
            for name in ("algorithm", "window", "budget", "topk"):
                was, now = getattr(before.settings, name), getattr(server.settings, name)
                if was != now:
                    text = f"{name} {'–' if was is None else was} → {'–' if now is None else now}"
                    self.history.mark(server.name, at, text)
