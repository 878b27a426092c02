"""Snapshots as JSON: what ``status``, ``demo --headless`` and recordings print, and back again.

The keys of a server are fixed (README); more may come. A missing figure is null. With ``detail`` everything
that a snapshot holds is added under ``detail``, so that it can be read back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dflash_backend.core.errors import ConfigError
from dflash_backend.core.samples import (
    GpuSample,
    LinkStatus,
    ServerFigures,
    ServerSnapshot,
    Snapshot,
)

SCHEMA = 1
GPU_KEYS = (
    "index", "name", "memory_used_mib", "memory_total_mib", "utilization_pct", "power_w", "temperature_c",
    "health",
)  # fmt: skip
FIGURE_KEYS = ("decode_tok_s", "accept_length", "running", "queued", "token_usage")


def iso(at: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> float:
    """The way back. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def server_to_json(server: ServerSnapshot, now: float, *, detail: bool = False) -> dict[str, Any]:
    """One server. ``age_s`` is the age of the newest fact about it, null when there is none."""
    figures = server.figures
    out: dict[str, Any] = {
        "name": server.name,
        "host": server.host,
        "state": str(server.state),
        "stage": server.stage.text() if server.stage is not None else None,
        "profile": server.profile,
        "algorithm": str(server.algorithm) if server.algorithm is not None else None,
        "window": server.window,
        "budget": server.budget,
        "topk": server.topk,
        "audit": server.audit,
        "decode_tok_s": _rounded(figures.decode_tok_s, 3) if figures else None,
        "accept_length": _rounded(figures.accept_length, 4) if figures else None,
        "running": figures.running if figures else None,
        "queued": figures.queued if figures else None,
        "token_usage": _rounded(figures.token_usage, 6) if figures else None,
        "gpus": [{key: getattr(gpu, key) for key in GPU_KEYS} for gpu in server.gpus],
        "rss_mib": _rounded(server.rss_mib, 1),
        "age_s": _rounded(max(0.0, now - server.at), 3) if server.at is not None else None,
        "message": server.message,
        "port": server.port,
        "run_id": server.run.run_id if server.run is not None else None,
        "decode_source": (figures.decode_source or None) if figures else None,
        "notes": dict(figures.notes) if figures else {},
        "gpu_note": server.gpu_note or None,
    }
    if detail:
        out["detail"] = msgspec.to_builtins(server)
    return out


def snapshot_to_json(snapshot: Snapshot, *, detail: bool = False) -> dict[str, Any]:
    """The whole fleet."""
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "at": iso(snapshot.at),
        "servers": [server_to_json(server, snapshot.at, detail=detail) for server in snapshot.servers],
        "hosts": [
            {
                "name": link.host,
                "state": str(link.state),
                "message": link.message,
                "age_s": None if link.last_seen is None else round(max(0.0, snapshot.at - link.last_seen), 3),
            }
            for link in snapshot.hosts
        ],
    }
    if detail:
        # The ISO form keeps milliseconds only.
        out["detail"] = {"at": snapshot.at, "hosts": msgspec.to_builtins(snapshot.hosts)}
    return out


def snapshot_from_json(value: object) -> Snapshot:
    """Reads what ``snapshot_to_json`` made; without ``detail`` as far as the fixed keys reach.

    Raises ConfigError for anything else.
    """
    try:
        if not isinstance(value, Mapping):
            raise ValueError("not a JSON object")
        if value.get("schema") != SCHEMA:
            raise ValueError(f"schema {value.get('schema')!r}, this console reads {SCHEMA}")
        rest = value.get("detail") or {}
        at = float(rest["at"]) if "at" in rest else from_iso(value["at"])
        return Snapshot(
            at=at,
            servers=tuple(_server(server, at) for server in value.get("servers", ())),
            hosts=msgspec.convert(rest["hosts"], tuple[LinkStatus, ...], strict=False)
            if "hosts" in rest
            else tuple(_link(host, at) for host in value.get("hosts", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        # msgspec's own errors are ValueErrors.
        raise ConfigError(f"not a snapshot: {error}") from error


def _server(value: Mapping[str, Any], at: float) -> ServerSnapshot:
    detail = value.get("detail")
    if detail is not None:
        return msgspec.convert(detail, ServerSnapshot, strict=False)
    seen = at - value["age_s"] if value.get("age_s") is not None else None
    figures = None
    if any(value.get(key) is not None for key in FIGURE_KEYS):
        figures = msgspec.convert(
            {
                "server": value["name"],
                "at": seen if seen is not None else at,
                "decode_source": value.get("decode_source") or "",
                "notes": value.get("notes") or {},
                **{key: value.get(key) for key in FIGURE_KEYS},
            },
            ServerFigures,
        )
    flat = {
        key: value.get(key)
        for key in ("name", "host", "state", "profile", "algorithm", "window", "budget", "topk", "audit")
    }
    return msgspec.convert(
        {
            **flat,
            "port": value.get("port") or 0,
            "stage": _stage(value.get("stage")),
            "gpus": [msgspec.to_builtins(msgspec.convert(gpu, GpuSample)) for gpu in value.get("gpus", ())],
            "figures": msgspec.to_builtins(figures),
            "rss_mib": value.get("rss_mib"),
            "gpu_note": value.get("gpu_note") or "",
            "at": seen,
            "message": value.get("message") or "",
        },
        ServerSnapshot,
    )


def _stage(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    name, _, progress = text.partition(" ")
    done, _, total = progress.partition("/")
    return {"name": name, "done": int(done) if done else None, "total": int(total) if total else None}


def _link(value: Mapping[str, Any], at: float) -> LinkStatus:
    seen = at - value["age_s"] if value.get("age_s") is not None else None
    return msgspec.convert(
        {
            "host": value["name"],
            "state": value["state"],
            "since": at,
            "last_seen": seen,
            "message": value.get("message") or "",
        },
        LinkStatus,
    )
