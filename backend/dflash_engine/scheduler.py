"""Which requests run: first come, first served, as long as slots and KV capacity last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .api import FinishReason, Request, RequestError, RequestOutput
from .requests import Sequence


@dataclass(slots=True)
class Scheduler:
    """Queue and running set. A request reserves prompt and completion in full, so none is ever thrown out."""

    max_running: int
    capacity: int
    max_queued: int | None
    queue: deque[Request] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    ended: list[RequestOutput] = field(default_factory=list)
    """Aborts that the next step reports."""

    @property
    def reserved(self) -> int:
        return sum(s.reserved for s in self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.queue or self.running or self.ended)

    def enqueue(self, request: Request) -> None:
        if any(request.id == r.id for r in self.queue) or any(request.id == s.id for s in self.running):
            raise RequestError(f"Duplicate request ID detected: {request.id}", status=409)
        if self.max_queued is not None and len(self.queue) >= self.max_queued:
            raise RequestError("The request queue is full.", status=503)
        self.queue.append(request)

    def abort(self, request_id: str) -> bool:
        for request in self.queue:
            if request.id == request_id:
                self.queue.remove(request)
                self._report_abort(request_id, 0)
                return True
        for sequence in self.running:
            if sequence.id == request_id:
                self.running.remove(sequence)
                self._report_abort(request_id, sequence.cache.length)
                return True
        return False

    def abort_all(self) -> int:
        ids = [r.id for r in self.queue] + [s.id for s in self.running]
        return sum(self.abort(i) for i in ids)

    def _report_abort(self, request_id: str, committed: int) -> None:
        reason = FinishReason("abort", message="Aborted")
        self.ended.append(RequestOutput(request_id, (), reason, committed_tokens=committed))

    def take_ended(self) -> tuple[RequestOutput, ...]:
        ended, self.ended = tuple(self.ended), []
        return ended

    def admit(self, start: Callable[[Request], Sequence]) -> Sequence | None:
        """Start the oldest queued request if it fits now."""
        if not self.queue or len(self.running) >= self.max_running:
            return None
        head = self.queue[0]
        if self.reserved + len(head.token_ids) + head.sampling.max_new_tokens > self.capacity:
            return None
        self.queue.popleft()
        sequence = start(head)
        self.running.append(sequence)
        return sequence

    def finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
