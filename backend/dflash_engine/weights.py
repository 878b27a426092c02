"""Safetensors files as float32 arrays, checked against the shapes that the config asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from .api import EngineConfigError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
FArray = F32 | F64
"""Keys and values: float32 in the drafter, values in float64 in the target (see attention.attend)."""

_MOST_LISTED = 6


def load_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]], *, prefix: str = "") -> dict[str, F32]:
    """Every tensor of ``shapes`` from the folder's safetensors file(s), as contiguous float32.

    ``prefix`` is cut from stored names (targets store ``model.``). Missing, unknown and misshapen tensors are
    listed together in one ``EngineConfigError``; so is a file that is cut short.
    """
    stored: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for path in _files(folder):
        try:
            entries = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except OSError as error:
            raise EngineConfigError(
                "weights", f"cannot be read: {error.strerror}", where=str(path)
            ) from error
        except SafetensorError as error:
            raise EngineConfigError(
                "weights", f"truncated or not a safetensors file: {error}", where=str(path)
            ) from error
        for name, info in entries:
            stored[name.removeprefix(prefix)] = (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
    _check(stored, shapes, folder)
    return {name: _to_float32(name, *stored[name], folder) for name in shapes}


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise EngineConfigError(
            "weights", "no model.safetensors and no model.safetensors.index.json", where=str(folder)
        )
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise EngineConfigError("weight_map", f"cannot be read: {error!r}", where=str(index)) from error
    if any(not isinstance(n, str) or Path(n).name != n for n in names):
        raise EngineConfigError("weight_map", "names a file outside the folder", where=str(index))
    return [folder / name for name in sorted(names)]


def _check(
    stored: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> None:
    faults = [f"{name} is missing" for name in shapes if name not in stored]
    faults += [
        f"{name} has shape {list(stored[name][1])}, config.json asks for {list(shape)}"
        for name, shape in shapes.items()
        if name in stored and stored[name][1] != shape
    ]
    faults += [f"{name} is not part of this architecture" for name in stored if name not in shapes]
    if faults:
        more = len(faults) - _MOST_LISTED
        listed = "; ".join(faults[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
        raise EngineConfigError("weights", listed, where=str(folder))


def _to_float32(name: str, dtype: str, shape: tuple[int, ...], data: bytes, folder: Path) -> F32:
    if dtype == "BF16":
        values = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in ("F32", "F16"):
        values = np.frombuffer(data, dtype={"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)
    else:
        raise EngineConfigError(
            name, f"dtype {dtype}; this engine reads BF16, F16 and F32", where=str(folder)
        )
    if not np.isfinite(values).all():
        raise EngineConfigError(name, "holds values that are not finite", where=str(folder))
    return values.reshape(shape)
