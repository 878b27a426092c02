"""``plan``: the exact command of a profile, for a configured server or a named release; changes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable
from typing import Any

from dflash_backend.core.errors import UsageError
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.commands.profiles import load

DEFAULT_PORT = 30000


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``plan``."""
    parser.add_argument("server", nargs="?", help="a configured server; its host is asked for its SGLang")
    parser.add_argument("--profile", metavar="P", help="a profile's name or path (default: the server's own)")
    parser.add_argument("--sglang-version", metavar="V", help="plan for this release without asking any host")


def run(args: argparse.Namespace, context: Context) -> int | Awaitable[int]:
    """Exit 1 when the plan has refusals: it ran, and the answer is no."""
    if args.sglang_version is None:
        if args.server is None:
            raise UsageError(
                "which server?",
                where="plan",
                next_step="name one, or plan for a release: --profile P --sglang-version 0.5.14",
            )
        return _live(args, context)
    return _offline(args, context)


async def _live(args: argparse.Namespace, context: Context) -> int:
    from dflash_backend.control.contract import Action
    from dflash_console.cli.live import demand_host, watching

    async with watching(context, [args.server]) as plane:
        demand_host(plane.fleet.snapshot(), plane.inventory.servers[args.server].host)
        plan = await plane.operator.plan(Action.APPLY, args.server, args.profile)
    document = {
        "server": plan.server,
        "host": plan.host,
        "profile": plan.profile.name,
        "from_profile": plan.from_profile,
        "live": plan.live,
        "command": plan.command,
        "argv": list(plan.argv),
        "changes": [
            {"name": c.name, "before": c.before, "after": c.after, "how": c.how} for c in plan.changes
        ],
        "notes": list(plan.notes),
        "warnings": [{"text": w.text, "dangerous": w.dangerous} for w in plan.warnings],
        "refusals": list(plan.refusals),
        "memory_forecast": list(plan.memory_forecast),
        "expected_s": plan.expected_s,
    }
    return _print(document, context)


def _offline(args: argparse.Namespace, context: Context) -> int:
    from dflash_backend.config.check import suggestion
    from dflash_backend.core.inventory import HostConfig, ServerConfig
    from dflash_backend.sglang.argv import compose

    server: ServerConfig | None = None
    host: HostConfig | None = None
    if args.server is not None:
        server = context.inventory.servers.get(args.server)
        if server is None:
            hint = suggestion(args.server, context.inventory.servers)
            raise UsageError(
                f"there is no server {args.server!r}",
                where=context.inventory.path,
                next_step=hint or "no server is configured",
            )
        host = context.inventory.hosts[server.host]
    name = args.profile or (server.profile if server else None)
    if name is None:
        raise UsageError(
            "which profile?", where="plan", next_step="--profile P; 'dflash-console profiles list' shows them"
        )
    profile = load(context.profiles, name)
    command = compose(
        profile,
        args.sglang_version,
        python=host.python if host else None,
        port=server.port if server else DEFAULT_PORT,
    )
    document = {
        "server": server.name if server else None,
        "host": host.name if host else None,
        "profile": profile.name,
        "sglang_version": args.sglang_version,
        "command": command.shell(),
        "argv": list(command.argv),
        "notes": list(command.notes),
        "warnings": [{"text": w.text, "dangerous": w.dangerous} for w in command.warnings],
        "refusals": [f"{r.text}; {r.next_step}" if r.next_step else r.text for r in command.refusals],
    }
    return _print(document, context)


def _print(document: dict[str, Any], context: Context) -> int:
    out = context.out
    code = 1 if document["refusals"] else 0
    if out.as_json:
        out.document(document)
        return code
    head = document["server"] or "any server"
    before = document.get("from_profile")
    out.line(f"{head}: {f'{before} → ' if before else ''}{document['profile']}")
    changes = document.get("changes") or []
    if changes and any(c["before"] is not None for c in changes):
        out.table(
            ["setting", "before", "after", "how"],
            [[c["name"], c["before"] or "–", c["after"] or "–", c["how"]] for c in changes],
        )
    out.line(document["command"])
    for text in document["refusals"]:
        out.line(f"  refused: {text}")
    for warning in document["warnings"]:
        out.line(f"  {'dangerous' if warning['dangerous'] else 'warning'}: {warning['text']}")
    for text in [*document["notes"], *(document.get("memory_forecast") or [])]:
        out.line(f"  note: {text}")
    if document.get("expected_s"):
        out.line(f"  about {document['expected_s']:.0f} s, as the last starts of it took")
    return code


COMMAND = Leaf(
    help="the exact command of a profile on a server, and what stands against it; changes nothing",
    run=run,
    configure=configure,
)
