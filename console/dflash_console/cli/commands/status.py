"""``status``: the servers as they are now, once or as a stream."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_backend.core.samples import ServerSnapshot, Snapshot
from dflash_backend.core.states import ServerState
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.live import once_a_second, settled, watching

AUDIT_S = 8.0
"""How long the window audits of the servers are waited for."""
_SILENT = frozenset({ServerState.UNREACHABLE, ServerState.UNKNOWN})


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``status``."""
    parser.add_argument("servers", nargs="*", metavar="SERVER", help="default: all")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print one snapshot and end (the default)")
    how.add_argument("--watch", action="store_true", help="a snapshot a second until interrupted")


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 3 when a server's host cannot be reached; what is known is printed all the same."""
    from dflash_backend.telemetry.snapshot_json import snapshot_to_json

    context.left = "nothing was changed, watching has ended"
    async with watching(context, args.servers, settle=False, audits=True) as plane:
        snapshot = await settled(plane)
        if not args.watch:
            await plane.audits.settle(snapshot, AUDIT_S)
            snapshot = plane.fleet.snapshot()
            if context.out.as_json:
                context.out.document(snapshot_to_json(snapshot))
            else:
                show(snapshot, context)
            return _code(snapshot)
        async for snapshot in once_a_second(plane.fleet):
            if context.out.as_json:
                context.out.event(snapshot_to_json(snapshot))
            else:
                show(snapshot, context)
                context.out.line()
        return _code(snapshot)


def _code(snapshot: Snapshot) -> int:
    return 3 if any(server.state in _SILENT for server in snapshot.servers) else 0


def show(snapshot: Snapshot, context: Context) -> None:
    """The table for people; missing is a dash, never 0."""
    if not snapshot.servers:
        context.out.line("no server is configured; dflash-console info shows an example")
        return
    context.out.table(
        [
            "server",
            "host",
            "state",
            "profile",
            "algo",
            "window",
            "B/k",
            "tok/s",
            "accept",
            "run/q",
            "memory",
            "age",
        ],
        [_row(server, snapshot.at) for server in snapshot.servers],
    )
    # What is said of every server of a host is about the host: said once.
    said: dict[tuple[str, str], list[str]] = {}
    for server in snapshot.servers:
        for line in _remarks(server):
            said.setdefault((server.host, line), []).append(server.name)
    for (host, line), names in said.items():
        whose = names[0] if len(names) == 1 else f"{host}, {len(names)} servers"
        context.out.line(f"{whose}: {line}")


def _remarks(server: ServerSnapshot) -> list[str]:
    """What the table has no room for: why a server is not serving, and what is odd about its run."""
    from dflash_backend.runs.rows import explain_exit

    quiet = server.state in (ServerState.READY, ServerState.STOPPED)
    lines = [] if quiet or not server.message else [server.message]
    run = server.run
    if run is None:
        return lines
    if server.state is ServerState.FAILED and (reason := explain_exit(run)):
        lines.append(reason)
    if run.note and not any(run.note in line for line in lines):
        lines.append(run.note)
    if run.left:
        lines.append(f"{run.left} processes of it are left: dflash-console stop {server.name} removes them")
    return lines


def _row(server: ServerSnapshot, now: float) -> list[str]:
    figures = server.figures
    return [
        server.name,
        server.host,
        f"{server.state} ({server.stage.text()})" if server.stage else str(server.state),
        server.profile or "–",
        str(server.algorithm or "–"),
        _window(server),
        f"{_text(server.budget)}/{_text(server.topk)}" if server.budget is not None else "–",
        _text(figures and figures.decode_tok_s, ".1f"),
        _text(figures and figures.accept_length, ".2f"),
        f"{_text(figures.running)}/{_text(figures.queued)}" if figures else "–",
        _memory(server),
        "–" if server.at is None else f"{max(0.0, now - server.at):.0f}s",
    ]


def _window(server: ServerSnapshot) -> str:
    """The declared window where the audit knows it, and the audit's word: ``256 ✓``, ``256 ✖gap``."""
    audit = server.audit_summary
    declared = audit.window if audit is not None else None
    shown = declared if server.window in (None, "config") and declared is not None else server.window
    mark = {"enforced": "✓", "not-declared": "", "unknown": "?"}.get(audit.verdict, "✖gap") if audit else ""
    return f"{'–' if shown is None else shown} {mark}".rstrip()


def _text(value: Any, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _memory(server: ServerSnapshot) -> str:
    used = [gpu.memory_used_mib for gpu in server.gpus if gpu.memory_used_mib is not None]
    total = [gpu.memory_total_mib for gpu in server.gpus if gpu.memory_total_mib is not None]
    if used and total and sum(total) > 0:
        return f"GPU {100 * sum(used) / sum(total):.0f}%"
    return "–" if server.rss_mib is None else f"RSS {server.rss_mib:.0f} MiB"


COMMAND = Leaf(help="the servers as they are now", run=run, configure=configure)
