"""A stream in which only the newest item counts: a slow reader skips and never slows the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Newest(Generic[T]):
    """One writer, any number of readers."""

    def __init__(self) -> None:
        self._item: T | None = None
        self._count = 0
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def put(self, item: T) -> None:
        """Replaces the newest item and wakes the readers."""
        self._item = item
        self._count += 1
        self._wake()

    def close(self) -> None:
        """Ends every reader after the newest item."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def read(self) -> AsyncIterator[T]:
        """Items from now on, beginning with the newest one if there is one already."""
        seen = 0
        while True:
            if self._count > seen and self._item is not None:
                seen = self._count
                yield self._item
                continue
            if self._closed:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
