"""Which vocabulary columns the stored draft logits keep; used on both sides of the comparison with torch."""

from __future__ import annotations

from typing import Any

import numpy as np

COLUMNS = 97
"""Enough to see any difference, few enough to store."""


def columns(vocabulary: int) -> np.ndarray[Any, Any]:
    return np.linspace(0, vocabulary - 1, COLUMNS).astype(np.int64)
