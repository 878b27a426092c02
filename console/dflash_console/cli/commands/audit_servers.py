"""``audit`` of configured servers: over SSH, one or all, with or without a measurement."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dflash_backend.core.errors import ConsoleError, UsageError
from dflash_console.cli.command import Context
from dflash_console.cli.live import demand_host, watching

if TYPE_CHECKING:
    from dflash_backend.audit.badges import Entry
    from dflash_backend.control.plane import ControlPlane

UNREACHABLE = 3


async def servers(names: Sequence[str], args: argparse.Namespace, context: Context) -> int:
    """Prints one report, or one per server; the gravest exit code counts: 3 unreachable, 1 a gap, 0 none."""
    context.left = "nothing was changed"
    if args.measure and not names:
        raise UsageError("--measure is for one server", next_step="dflash-console audit SERVER --measure")
    if not names and not context.inventory.servers:
        raise UsageError(
            "no server is configured",
            where=context.inventory.path,
            next_step="dflash-console audit --draft-config FILE --sglang-version V audits files",
        )
    async with watching(context, names) as plane:
        if names:
            return await _one(plane, names[0], args, context)
        return await _all(plane, context)


async def _one(plane: ControlPlane, name: str, args: argparse.Namespace, context: Context) -> int:
    demand_host(plane.fleet.snapshot(), plane.inventory.servers[name].host)
    if args.measure:
        await _measure(plane, name, force=args.force, context=context)
    entry = await plane.audits.get(name)
    if context.out.as_json:
        context.out.document(_document(name, entry))
    else:
        _print(entry, context)
    return _code(entry)


async def _all(plane: ControlPlane, context: Context) -> int:
    names = list(plane.inventory.servers)
    found = await asyncio.gather(*(_try(plane, name) for name in names))
    documents: list[dict[str, Any]] = []
    codes = []
    for name, entry in zip(names, found, strict=True):
        if isinstance(entry, ConsoleError):
            documents.append({"subject": name, "verdict": "unknown", "error": list(entry.lines())})
            codes.append(entry.exit_code)
            if not context.out.as_json:
                context.out.line(f"{name}: unknown: {entry.lines()[0]}")
                context.out.line()
        else:
            documents.append(_document(name, entry))
            codes.append(_code(entry))
            if not context.out.as_json:
                _print(entry, context)
                context.out.line()
    if context.out.as_json:
        context.out.document({"servers": documents})
    return UNREACHABLE if UNREACHABLE in codes else max(codes, default=0)


async def _try(plane: ControlPlane, name: str) -> Entry | ConsoleError:
    try:
        demand_host(plane.fleet.snapshot(), plane.inventory.servers[name].host)
        return await plane.audits.get(name)
    except ConsoleError as error:
        return error


async def _measure(plane: ControlPlane, name: str, *, force: bool, context: Context) -> None:
    from dflash_backend.audit.measurement import Progress
    from dflash_backend.control.measuring import measure_window

    context.left = "the measurement was given up; the server goes on as before"
    async with aclosing(measure_window(plane, name, force=force)) as items:
        async for item in items:
            if isinstance(item, Progress):
                context.out.progress(f"measuring {name}: {item.done}/{item.total} requests")


def _document(name: str, entry: Entry) -> dict[str, Any]:
    audit = entry.audit
    assert audit is not None
    return {
        **audit.report.to_json(),
        "server": name,
        "basis": audit.basis,
        "run_id": audit.run_id,
        "profile": audit.profile,
        "python": audit.python or None,
        "measured": audit.measurement.to_json() if audit.measurement is not None else None,
    }


def _print(entry: Entry, context: Context) -> None:
    from dflash_backend.audit.picture import report_lines

    assert entry.audit is not None
    for line in report_lines(entry.audit.report):
        context.out.line(line)


def _code(entry: Entry) -> int:
    from dflash_backend.audit.measured import has_gap

    assert entry.audit is not None
    return max(entry.audit.report.exit_code, 1 if has_gap(entry.audit.report) else 0)
