"""``info``: every path that the console reads or writes, and an example of a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dflash_backend.core import paths
from dflash_console.cli.command import Context, Leaf
from dflash_console.cli.version import version


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``info``."""
    parser.add_argument("--example", action="store_true", help="print a configuration file to begin with")


def run(args: argparse.Namespace, context: Context) -> int:
    """Prints paths even when the configuration cannot be read: then one looks for it."""
    from dflash_backend.config.example import EXAMPLE
    from dflash_backend.config.inventory import chosen_path
    from dflash_backend.profiles.store import shipped_dir

    if args.example:
        if context.out.as_json:
            context.out.document({"example": EXAMPLE})
        else:
            context.out.raw(EXAMPLE)
        return 0
    config, named = chosen_path(context.config)
    places: dict[str, Path] = {
        "configuration": config,
        "profiles": config.parent / "profiles",
        "shipped profiles": shipped_dir(),
        "state": paths.state_dir(),
        "data": paths.data_dir(),
        "cache": paths.cache_dir(),
    }
    if context.out.as_json:
        context.out.document(
            {
                "version": version(),
                "python": sys.version.split()[0],
                "config_named": named,
                "paths": {
                    name.replace(" ", "_"): {"path": str(path), "exists": path.exists()}
                    for name, path in places.items()
                },
            }
        )
        return 0
    context.out.line(f"dflash-console {version()}, Python {sys.version.split()[0]}")
    context.out.table(
        ["what", "path", ""],
        [[name, str(path), "" if path.exists() else "(not there)"] for name, path in places.items()],
    )
    if not config.exists():
        context.out.note(f"to begin with: dflash-console info --example > {config}")
    return 0


COMMAND = Leaf(help="where files are, and an example of a configuration", run=run, configure=configure)
