"""``bench``: run a job against servers, and look at the results again."""

from __future__ import annotations

import argparse
from contextlib import aclosing
from typing import TYPE_CHECKING

from dflash_backend.core.errors import UsageError
from dflash_console.cli.command import Context, Group, Leaf, path_argument
from dflash_console.cli.live import demand_host, watching

if TYPE_CHECKING:
    from dflash_backend.bench.cell import CellProgress, CellResult
    from dflash_backend.bench.run import Event
    from dflash_backend.bench.stats import Spread


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``bench run``."""
    parser.add_argument(
        "job",
        metavar="JOB",
        help="a job file, or a name: first-look, or a file in jobs/ beside the configuration",
    )
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="S",
        help="repeatable; default: the only one configured",
    )


async def run(args: argparse.Namespace, context: Context) -> int:
    """Exit 1 when a cell is unclean or failed. Finished cells are kept whatever happens."""
    from dflash_backend.bench.job import load_job
    from dflash_backend.bench.jobs import named_job

    path = path_argument(args.job)
    is_file = path.suffix or len(path.parts) > 1 or path.exists()
    job = load_job(path) if is_file else named_job(args.job, context.inventory.path)
    servers = args.server or _only(context)
    context.left = "nothing was measured"
    code = 0
    async with watching(context, servers) as plane:
        from dflash_backend.control.benching import ServerBench

        for server in dict.fromkeys(servers):
            demand_host(plane.fleet.snapshot(), plane.inventory.servers[server].host)
            async with aclosing(ServerBench(plane, job, server).events()) as events:
                async for event in events:
                    code = max(code, _tell(event, context))
    return code


def _only(context: Context) -> list[str]:
    names = list(context.inventory.servers)
    if len(names) == 1:
        return names
    raise UsageError(
        "which server?", where="bench run", next_step=f"--server S; there are {', '.join(names) or 'none'}"
    )


def _tell(event: Event, context: Context) -> int:
    from dflash_backend.bench.cell import CellProgress, CellResult
    from dflash_backend.bench.results import plain
    from dflash_backend.bench.run import RunStarted

    out = context.out
    if isinstance(event, RunStarted):
        context.left = f"finished cells are kept: dflash-console bench show {event.run_id}"
        out.note(f"{event.job} on {event.server}: {len(event.cells)} cells, run {event.run_id}")
        if out.as_json:
            out.event(
                {"event": "started", "run": event.run_id, "server": event.server, "folder": event.folder}
            )
        return 0
    if isinstance(event, CellProgress):
        out.progress(_progress(event))
        return 0
    if isinstance(event, CellResult):
        if out.as_json:
            document = plain(event)
            assert isinstance(document, dict)
            out.event({"event": "cell", "clean": event.clean, **document})
        else:
            for line in cell_lines(event):
                out.line(line)
        return 0 if event.clean else 1
    if out.as_json:
        out.event({"event": "summary", "run": event.run_id, "state": event.state, "message": event.message})
    else:
        out.note(f"{event.state}{f': {event.message}' if event.message else ''}; results in {event.folder}")
    return 0 if event.ok else (5 if event.state == "failed" else 1)


def _progress(event: CellProgress) -> str:
    rate = "" if event.tok_s is None else f", {event.tok_s:.1f} tok/s"
    accept = "" if event.accept_length is None else f", accept {event.accept_length:.2f}"
    eta = "" if event.eta_s is None else f", {event.eta_s:.0f} s left"
    return (
        f"cell {event.index + 1}/{event.cells} concurrency {event.concurrency}: {event.phase} "
        f"{event.done}/{event.total} (repeat {event.repeat + 1}/{event.repeats}){rate}{accept}{eta}"
    )


def cell_lines(cell: CellResult) -> list[str]:
    """A finished cell for people."""

    def milliseconds(name: str, spread: Spread | None) -> str:
        return f"{name} {spread.p50:.1f}/{spread.p99:.1f} ms" if spread is not None else f"{name} –"

    rate = "–" if cell.output_tok_s is None else f"{cell.output_tok_s:.1f} tok/s"
    accept = "–" if cell.accept_length is None else f"{cell.accept_length:.2f}"
    lines = [
        (
            f"concurrency {cell.concurrency}: {rate}, accept {accept}, "
            f"{cell.requests} requests, {cell.failed} failed"
        ),
        "  p50/p99: "
        + ", ".join(
            milliseconds(name, spread)
            for name, spread in (("TTFT", cell.ttft_ms), ("TPOT", cell.tpot_ms), ("ITL", cell.itl_ms))
        ),
    ]
    lines += [f"  unclean: {reason}" for reason in cell.unclean]
    lines += [f"  error: {error}" for error in cell.errors]
    return lines


def list_(args: argparse.Namespace, context: Context) -> int:
    """Runs on this machine, newest first."""
    from dflash_backend.bench.results import list_runs, plain

    runs = list_runs()
    if context.out.as_json:
        context.out.document({"runs": [plain(run) for run in runs]})
        return 0
    if not runs:
        context.out.note("no benchmark was run yet: dflash-console bench run JOB.toml --server S")
        return 0
    context.out.table(
        ["run", "job", "server", "state", "cells"],
        [
            [
                run.id,
                run.job,
                run.server,
                "interrupted" if run.interrupted else run.state,
                f"{run.cells_done}/{'?' if run.cells_planned is None else run.cells_planned}"
                + (f" ({run.unclean} unclean)" if run.unclean else ""),
            ]
            for run in runs
        ],
    )
    return 0


def show(args: argparse.Namespace, context: Context) -> int:
    """A run as a table with its definitions; with ``--json`` everything that was kept."""
    from dflash_backend.bench.results import export_run

    context.out.raw(export_run(args.run_id, "json" if context.out.as_json else "md"))
    return 0


def configure_show(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``bench show``."""
    parser.add_argument("run_id", metavar="RUN")


def export(args: argparse.Namespace, context: Context) -> int:
    """Prints a run in another form, or writes it to a file."""
    from dflash_backend.bench.results import export_run

    text = export_run(args.run_id, args.format)
    if args.output is None:
        if context.out.as_json and args.format != "json":
            context.out.document({"run": args.run_id, "format": args.format, "text": text})
        else:
            context.out.raw(text)
        return 0
    from dflash_backend.core.paths import write_atomic

    if args.output.exists() and not args.force:
        raise UsageError("the file exists", where=str(args.output), next_step="--force overwrites it")
    write_atomic(args.output, text)
    if context.out.as_json:
        context.out.document({"run": args.run_id, "format": args.format, "file": str(args.output)})
    else:
        context.out.note(f"written to {args.output}")
    return 0


def configure_export(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``bench export``."""
    parser.add_argument("run_id", metavar="RUN")
    parser.add_argument("--format", choices=["md", "csv", "json"], default="md")
    parser.add_argument("--output", type=path_argument, metavar="FILE")
    parser.add_argument("--force", action="store_true", help="overwrite the file")


COMMAND = Group(
    help="benchmarks: run a job, look at results",
    commands={
        "run": Leaf(help="run a job against one or more servers", run=run, configure=configure_run),
        "list": Leaf(help="runs on this machine, newest first", run=list_),
        "show": Leaf(help="one run, with definitions", run=show, configure=configure_show),
        "export": Leaf(help="one run as md, csv or json", run=export, configure=configure_export),
    },
)
