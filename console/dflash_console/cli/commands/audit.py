"""``audit``: which window the drafter declares, what each layer really attends to, what to do about it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dflash_backend.core.errors import UsageError
from dflash_console.cli.command import Context, Leaf, path_argument

if TYPE_CHECKING:
    from dflash_backend.audit.report import AuditReport

_OFFLINE = ("sglang_version", "draft_window", "log", "source", "target_config", "compute_capability")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``audit``."""
    parser.add_argument(
        "server", nargs="?", metavar="SERVER", help="a server of the configuration (default: all)"
    )
    live = parser.add_argument_group("on servers")
    live.add_argument(
        "--measure", action="store_true", help="also measure accept length against context length (minutes)"
    )
    live.add_argument(
        "--force", action="store_true", help="measure also while requests of others are running"
    )
    offline = parser.add_argument_group("offline, on files")
    offline.add_argument(
        "--draft-config", type=path_argument, metavar="FILE", help="the drafter's config.json or its folder"
    )
    offline.add_argument("--sglang-version", metavar="V", help="the release, as 0.5.14")
    offline.add_argument(
        "--draft-window", type=int, metavar="N", help="value of the draft window flag (default: not given)"
    )
    offline.add_argument("--log", type=path_argument, metavar="FILE", help="the server's start-up log")
    offline.add_argument(
        "--source",
        type=path_argument,
        metavar="DIR",
        help="the installed SGLang: site-packages, venv, checkout, wheel",
    )
    offline.add_argument(
        "--target-config", type=path_argument, metavar="FILE", help="the target's config.json, for DDTree"
    )
    offline.add_argument(
        "--compute-capability", metavar="X.Y", help="of the GPU, for DDTree: 12.0 for RTX PRO 6000 Blackwell"
    )


async def run(args: argparse.Namespace, context: Context) -> int:
    """Prints the report; 0 when enforced or not declared, 1 for a gap or when it could not be established."""
    from dflash_console.cli.commands.audit_servers import servers

    if args.server is not None:
        if args.draft_config is not None or any(getattr(args, name) is not None for name in _OFFLINE):
            raise UsageError("name a server or files, not both", next_step="dflash-console audit --help")
        return await servers([args.server], args, context)
    if args.draft_config is None and not any(getattr(args, name) is not None for name in _OFFLINE):
        return await servers([], args, context)
    if args.draft_config is None:
        raise UsageError(
            "the drafter's config.json is not named",
            next_step="dflash-console audit --draft-config FILE --sglang-version V, or audit SERVER",
        )
    if args.measure:
        raise UsageError(
            "--measure needs a running server", next_step="dflash-console audit SERVER --measure"
        )
    report = _files(args)
    show(report, context)
    return report.exit_code


def _files(args: argparse.Namespace) -> AuditReport:
    from dflash_backend.audit.offline import audit_files

    return audit_files(
        args.draft_config,
        version=args.sglang_version,
        draft_window=args.draft_window,
        log=args.log,
        source=args.source,
        target_config=args.target_config,
        compute_capability=_capability(args.compute_capability),
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, dot, minor = text.partition(".")
    if not major.isdigit() or (dot and not minor.isdigit()) or len(text) > 5:
        raise UsageError("--compute-capability is like 12.0")
    return int(major), int(minor or 0)


def show(report: AuditReport, context: Context) -> None:
    """Prints a report as text or JSON."""
    from dflash_backend.audit.picture import report_lines

    if context.out.as_json:
        context.out.document(report.to_json())
        return
    for line in report_lines(report):
        context.out.line(line)


COMMAND = Leaf(
    help="which windows the drafter declares, and what its layers really attend to",
    run=run,
    configure=configure,
)
