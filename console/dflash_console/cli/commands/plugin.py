"""``plugin``: the SGLang plugin on a host."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from dflash_console.cli.command import Context, Group, Leaf

if TYPE_CHECKING:
    from dflash_backend.plugin_install import PluginStatus


async def _status(args: argparse.Namespace, context: Context) -> int:
    """Exit 1 when something stands in the way of an installed plugin. Changes nothing."""
    from dflash_backend import plugin_install
    from dflash_backend.ssh.pool import SshPool
    from dflash_console.cli.commands.host_keys import known_host

    pool = SshPool(context.inventory.hosts)
    try:
        seen = await plugin_install.status(pool.link(known_host(context, args.host)))
    finally:
        await pool.close()
    if context.out.as_json:
        context.out.document({"host": args.host, "plugin": asdict(seen)})
    else:
        _print(seen, context)
    return 1 if seen.problems else 0


async def _install(args: argparse.Namespace, context: Context) -> int:
    return await _change(args, context, install=True)


async def _uninstall(args: argparse.Namespace, context: Context) -> int:
    return await _change(args, context, install=False)


async def _change(args: argparse.Namespace, context: Context, *, install: bool) -> int:
    """Installs or removes, allowed by the one policy and written to the action log."""
    from dflash_backend import plugin_install
    from dflash_backend.control.contract import Action
    from dflash_backend.control.plane import ControlPlane
    from dflash_backend.core.errors import ConsoleError
    from dflash_console.cli.commands.host_keys import allow, known_host

    name = known_host(context, args.host)
    context.left = f"nothing was changed on {name}"
    plane = ControlPlane(context.inventory, read_only=context.read_only)
    try:
        allow(plane.operator.decide(Action.PLUGIN, host=name), name)
        link = plane.pool.link(name)
        what = {"op": "install" if install else "uninstall"}
        ident = plane.log.begin(Action.PLUGIN, server="", host=name, details=what)
        context.began(f"the plugin on {name} may be changed; dflash-console plugin status {name} shows it")
        try:
            done = await (plugin_install.install(link) if install else plugin_install.uninstall(link))
        except ConsoleError as problem:
            plane.log.end(
                ident, Action.PLUGIN, server="", host=name, ok=False, details={**what, "error": problem.what}
            )
            raise
        details = {**what, "changed": done.changed, "version": done.status.installed, "sha256": done.sha256}
        plane.log.end(ident, Action.PLUGIN, server="", host=name, ok=True, details=details)
    finally:
        await plane.close()
    if context.out.as_json:
        document = {"host": name, "changed": done.changed, "plugin": asdict(done.status)}
        context.out.document(document | ({"sha256": done.sha256} if install else {}))
        return 0
    if done.changed:
        context.out.line(
            f"{name}: {'installed' if install else 'uninstalled'}; running servers see it when restarted"
        )
    else:
        context.out.line(f"{name}: nothing to do")
    _print(done.status, context)
    return 0


def _print(seen: PluginStatus, context: Context) -> None:
    out = context.out
    out.line(f"{seen.host}: SGLang {seen.sglang or 'not installed'} in {seen.python}")
    if seen.installed is None:
        out.line(f"  – not installed; {seen.available} would be")
    else:
        newer = f" ({seen.available} is here)" if seen.upgradable else ""
        out.line(f"  {'✓' if seen.works else '✖'} plugin {seen.installed}{newer} in {seen.where}")
    for problem in seen.problems:
        out.line(f"  ! {problem}")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host")


COMMAND = Group(
    help="the SGLang plugin on a host",
    commands={
        "install": Leaf(
            help="put it into the environment that SGLang runs in", run=_install, configure=_configure
        ),
        "status": Leaf(help="is it there, intact, and found by SGLang", run=_status, configure=_configure),
        "uninstall": Leaf(help="remove it without a trace", run=_uninstall, configure=_configure),
    },
)
