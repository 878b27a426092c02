"""``hosts check``: the doctor, for one host or all of them."""

from __future__ import annotations

import argparse
import asyncio

from dflash_backend.config.inventory import require_hosts
from dflash_backend.doctor.check import check_host, needs_sglang
from dflash_backend.doctor.report import HostReport
from dflash_backend.ssh.pool import SshPool
from dflash_console.cli.command import Context
from dflash_console.cli.commands.host_keys import known_host

MARKS = {"ok": "✓", "warn": "!", "fail": "✖", "unknown": "?"}


async def check(args: argparse.Namespace, context: Context) -> int:
    """Exit code of the worst host: 1 something failed, 3 unreachable, 4 refused. Changes nothing."""
    inventory = context.inventory
    require_hosts(inventory)
    names = [known_host(context, name) for name in args.host]
    names = names or [host.name for host in inventory.hosts.values() if host.enabled]
    servers = {name: [s for s in inventory.servers.values() if s.host == name] for name in names}
    pool = SshPool(inventory.hosts)
    try:
        reports = await asyncio.gather(
            *(
                check_host(
                    pool.link(name),
                    ports=[server.port for server in servers[name]],
                    sglang=needs_sglang(servers[name], context.profiles),
                    timeout=args.timeout,
                )
                for name in names
            )
        )
    finally:
        await pool.close()
    if context.out.as_json:
        context.out.document({"hosts": [dict(report.to_json()) for report in reports]})
    else:
        for report in reports:
            _print(report, context)
    return max((report.exit_code for report in reports), default=0)


def _print(report: HostReport, context: Context) -> None:
    context.out.line(report.host)
    width = max((len(finding.name) for finding in report.findings), default=0)
    for finding in report.findings:
        context.out.line(f"  {MARKS[finding.status]} {finding.name.ljust(width)}  {finding.text}")
        if finding.next_step and finding.status != "ok":
            context.out.line(f"    {' ' * width}  next: {finding.next_step}")
