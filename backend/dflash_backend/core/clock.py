"""The one clock, so that tests and replays can set it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch."""

wall: Clock = time.time
