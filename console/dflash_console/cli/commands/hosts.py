"""``hosts``: list here; what needs SSH is in modules of its own."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_console.cli.command import Context, Group, Leaf


def list_(args: argparse.Namespace, context: Context) -> int:
    """The configured hosts and their servers. Connects to nothing."""
    inventory = context.inventory
    rows = [
        {
            "name": host.name,
            "address": host.address,
            "python": host.python,
            "enabled": host.enabled,
            "read_only": host.read_only or context.read_only,
            "env": dict(host.env),
            "servers": [
                {"name": s.name, "port": s.port, "profile": s.profile}
                for s in inventory.servers.values()
                if s.host == host.name
            ],
        }
        for host in inventory.hosts.values()
    ]
    if context.out.as_json:
        context.out.document({"config": inventory.path, "hosts": rows})
        return 0
    if not rows:
        from dflash_backend.config.inventory import require_hosts

        require_hosts(inventory)
    context.out.table(["host", "address", "python", "servers", ""], [_row(row) for row in rows])
    return 0


def _row(row: dict[str, Any]) -> list[str]:
    servers = ", ".join(f"{s['name']}:{s['port']}" for s in row["servers"]) or "–"
    marks = [*(() if row["enabled"] else ("disabled",)), *(("read-only",) if row["read_only"] else ())]
    return [row["name"], row["address"], row["python"] or "python3", servers, " ".join(marks)]


async def _check(args: argparse.Namespace, context: Context) -> int:
    from dflash_console.cli.commands.host_check import check

    return await check(args, context)


def _trust(args: argparse.Namespace, context: Context) -> int:
    from dflash_console.cli.commands.host_keys import trust

    return trust(args, context)


async def _forget(args: argparse.Namespace, context: Context) -> int:
    from dflash_console.cli.commands.host_keys import forget

    return await forget(args, context)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", nargs="*", help="default: all that are enabled")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each step")


def _configure_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host")
    parser.add_argument("--fingerprint", metavar="SHA256:…", help="trust exactly this key without asking")
    parser.add_argument("--replace", action="store_true", help="also replace a key that has changed")


def _configure_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host")


COMMAND = Group(
    help="machines reached by SSH",
    commands={
        "list": Leaf(help="configured hosts and their servers", run=list_),
        "check": Leaf(
            help="look at SSH, Python, SGLang, GPUs, disk, ports",
            run=_check,
            configure=_configure_check,
        ),
        "trust": Leaf(help="show a host's key and remember it", run=_trust, configure=_configure_trust),
        "forget": Leaf(help="forget a host's key", run=_forget, configure=_configure_host),
    },
)
