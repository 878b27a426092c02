"""Trusting and forgetting host keys from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from dflash_backend.config.check import suggestion
from dflash_backend.control.contract import Action, Decision
from dflash_backend.control.plane import ControlPlane
from dflash_backend.core.errors import RefusedError, UsageError
from dflash_backend.ssh.hostkeys import KeyReport, Verdict
from dflash_backend.ssh.pool import SshPool
from dflash_console.cli.asking import typed_yes
from dflash_console.cli.command import Context


def trust(args: argparse.Namespace, context: Context) -> int:
    """Shows the fingerprint of each unknown key on the way to a host and, after a yes, remembers it."""
    name = known_host(context, args.host)
    plane = ControlPlane(context.inventory, read_only=context.read_only)
    allow(plane.operator.decide(Action.TRUST_KEY, host=name), name)
    trusted: list[KeyReport] = []
    while True:
        reports = asyncio.run(_keys(context, name))
        report = reports[-1]
        if report.verdict is Verdict.TRUSTED:
            break
        if not _confirmed(report, args, context):
            raise RefusedError(
                f"the {report.verdict.value} key {report.fingerprint} of {report.name} was not confirmed",
                where=name,
                unchanged=_remembered(trusted),
                next_step=f"compare it on the host: {report.compare}",
            )
        ident = plane.log.begin(Action.TRUST_KEY, server="", host=name, details={"key": report.line})
        asyncio.run(_trust(context, report, replace=args.replace))
        plane.log.end(ident, Action.TRUST_KEY, server="", host=name, ok=True, details={})
        trusted.append(report)
        context.began(_remembered(trusted))
    if context.out.as_json:
        context.out.document(
            {
                "host": name,
                "trusted": [_key_json(item) for item in trusted],
                "keys": [_key_json(item) for item in reports],
            }
        )
    elif trusted:
        for item in trusted:
            context.out.line(f"{item.name}: {item.type} {item.fingerprint} is trusted")
    else:
        context.out.line(f"{name}: every key on the way is trusted already")
    return 0


async def _keys(context: Context, name: str) -> tuple[KeyReport, ...]:
    pool = SshPool(context.inventory.hosts)
    try:
        return await pool.key_reports(name)
    finally:
        await pool.close()


async def _trust(context: Context, report: KeyReport, *, replace: bool) -> None:
    pool = SshPool(context.inventory.hosts)
    try:
        await pool.trust(report, replace=replace)
    finally:
        await pool.close()


def _remembered(trusted: list[KeyReport]) -> str:
    return f"remembered: {', '.join(r.name for r in trusted)}" if trusted else "no key was remembered"


def _confirmed(report: KeyReport, args: argparse.Namespace, context: Context) -> bool:
    """Whether the user says yes to this very fingerprint: by typing, or by having named it."""
    if args.fingerprint and args.fingerprint == report.fingerprint:
        return True
    out = context.out
    out.note(f"{report.hop} ({report.name}) shows a {report.type} key that is {report.verdict.value}:")
    out.note(f"  offered   {report.fingerprint}")
    for known in report.known:
        out.note(f"  expected  {known.fingerprint}  ({known.source})")
    out.note(f"  compare on the host itself: {report.compare}")
    if report.verdict is Verdict.CHANGED and not args.replace:
        out.note("  a changed key is replaced only with --replace")
        return False
    if args.fingerprint or not sys.stdin.isatty():
        out.note("  name the key with --fingerprint SHA256:… to trust it without being asked")
        return False
    out.note("Trust this key? Type yes:")
    return typed_yes()


def _key_json(report: KeyReport) -> dict[str, Any]:
    return {
        "hop": report.hop,
        "name": report.name,
        "type": report.type,
        "fingerprint": report.fingerprint,
        "verdict": report.verdict.value,
        "known": [{"type": k.type, "fingerprint": k.fingerprint, "source": k.source} for k in report.known],
    }


async def forget(args: argparse.Namespace, context: Context) -> int:
    """Takes a host's keys out of the console's own known_hosts file."""
    name = known_host(context, args.host)
    plane = ControlPlane(context.inventory, read_only=context.read_only)
    try:
        allow(plane.operator.decide(Action.FORGET_KEY, host=name), name)
        ident = plane.log.begin(Action.FORGET_KEY, server="", host=name, details={})
        lines = await plane.pool.forget(name)
        plane.log.end(ident, Action.FORGET_KEY, server="", host=name, ok=True, details={"told": list(lines)})
    finally:
        await plane.close()
    if context.out.as_json:
        context.out.document({"host": name, "notes": list(lines)})
    else:
        for line in lines or ("no key of it was remembered",):
            context.out.line(f"{name}: {line}")
    return 0


def allow(decision: Decision, where: str) -> None:
    """Raises RefusedError with the reason when an action is not allowed now."""
    if not decision.allowed:
        raise RefusedError(decision.reason, where=where, unchanged="nothing was changed")


def known_host(context: Context, name: str) -> str:
    """``name`` when it is configured. Raises UsageError with the nearest."""
    if name in context.inventory.hosts:
        return name
    raise UsageError(
        f"there is no host {name!r} in the configuration",
        where=context.inventory.path,
        next_step=suggestion(name, context.inventory.hosts) or "no host is configured",
    )
