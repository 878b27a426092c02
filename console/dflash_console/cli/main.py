"""The entry point: finds the command, imports only that, runs it, turns every outcome into an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence

from dflash_backend.core.errors import ConsoleError, FailedError, UnrestoredError, UsageError
from dflash_console.cli import interrupts
from dflash_console.cli.command import Command, Context, Group, Leaf
from dflash_console.cli.output import Output, abandon, usable_streams
from dflash_console.cli.parsing import PROGRAM, Parser, add_globals, split, unknown
from dflash_console.cli.table import COMMANDS

INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended, as it would have without Python's own handling."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code (see the table in the README)."""
    words = list(sys.argv[1:] if argv is None else argv)
    usable_streams()
    # Also right when the arguments themselves are wrong.
    output = Output(as_json="--json" in words)
    context = Context(config=None, read_only=False, output=output)
    try:
        with interrupts.handled():
            code = _dispatch(words, context)
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        abandon(sys.stdout)
        return BROKEN_PIPE
    except ConsoleError as error:
        return _report(error, output)
    except KeyboardInterrupt:
        output.note(f"interrupted: {context.left}")
        return INTERRUPTED
    except ExceptionGroup as group:
        errors = [error for error in _flat(group) if isinstance(error, ConsoleError)]
        return _report(errors[0], output) if errors else _crash(group, context)
    except OSError as error:
        # Without a plainer message from where it happened this is still better than a traceback.
        return _report(_plain_words(error), output)
    except Exception as error:
        return _crash(error, context)


def _plain_words(error: OSError) -> ConsoleError:
    name = error.filename if isinstance(error.filename, str) else ""
    cannot_write = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
    step = "check room and permissions there, or set XDG_STATE_HOME and XDG_DATA_HOME to other folders"
    return ConsoleError(
        error.strerror or str(error),
        where=name,
        next_step=step if name and error.errno in cannot_write else "",
    )


def _flat(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def _crash(error: Exception, context: Context) -> int:
    """A mistake of this program: the traceback, without values and secrets, goes into a file."""
    import traceback

    from dflash_backend.core.paths import state_dir, write_atomic
    from dflash_backend.core.text import redact, sanitise

    report = state_dir() / "crash.txt"
    text = redact(sanitise("".join(traceback.format_exception(error))))
    try:
        write_atomic(report, text)
        where = f"the traceback is in {report}"
    except OSError:
        where = text
    failure = UnrestoredError if context.acting else FailedError
    what = f"internal error: {type(error).__name__}: {error}"
    return _report(failure(what, unchanged=context.left, next_step=where), context.out)


def _report(error: ConsoleError, output: Output) -> int:
    try:
        output.error(error)
        sys.stdout.flush()
    except OSError:
        # Standard output takes nothing, so there is no document; the exit code and the lines are there.
        abandon(sys.stdout)
    return error.exit_code


def _dispatch(words: list[str], context: Context) -> int:
    before, name, rest = split(words)
    parser = Parser(prog=PROGRAM, description=_DESCRIPTION, epilog=_command_list())
    parser.usage = f"{PROGRAM} [--config FILE] [--read-only] [COMMAND …]"
    add_globals(parser)
    parser.add_argument("--version", action="store_true", help="print the version")
    given = _parse(parser, before)
    if given is None:
        return 0
    if given.version:
        return _version(context)
    if name == "help":
        name, rest = (rest[0], [*rest[1:], "--help"]) if rest else (None, [])
        if name is None:
            parser.print_help()
            return 0
    if name is None:
        return _run(_load("tui"), PROGRAM, [], given, context)
    if name not in COMMANDS:
        raise unknown(name, COMMANDS, prog=PROGRAM, what="command")
    return _run(_load(name), f"{PROGRAM} {name}", rest, given, context)


def _load(name: str) -> Command:
    module = importlib.import_module(f"dflash_console.cli.commands.{name.replace('-', '_')}")
    command = module.COMMAND
    assert isinstance(command, Leaf | Group)
    return command


def _run(command: Command, prog: str, words: list[str], given: argparse.Namespace, context: Context) -> int:
    if isinstance(command, Group):
        before, name, rest = split(words)
        if name is None or name == "help":
            listing = Parser(prog=prog, description=command.help, epilog=_lines(_helps(command)))
            listing.usage = f"{prog} COMMAND …"
            add_globals(listing)
            if _parse(listing, [*before, *(["--help"] if name else [])]) is None:
                return 0
            raise UsageError(
                "a command is missing", where=prog, next_step=f"one of: {', '.join(command.commands)}"
            )
        if name not in command.commands:
            raise unknown(name, command.commands, prog=prog, what="command")
        return _run(command.commands[name], f"{prog} {name}", [*before, *rest], given, context)
    parser = Parser(prog=prog, description=command.description or command.help)
    if command.passthrough:
        args = argparse.Namespace(rest=words)
    else:
        if command.configure is not None:
            command.configure(parser)
        add_globals(parser)
        parsed = _parse(parser, words)
        if parsed is None:
            return 0
        args = parsed
    merged = {**vars(given), **vars(args)}
    context.config = merged.get("config")
    context.set_read_only(bool(merged.get("read_only", False)))
    context.out.as_json = bool(merged.get("json", False))
    result = command.run(args, context)
    if not inspect.isawaitable(result):
        return result
    # Imported here: it is of use only where services run.
    from dflash_console.cli.console_log import keep_log

    keep_log()
    return interrupts.run(_await(result), context.out.note)


async def _await(result: object) -> int:
    assert inspect.isawaitable(result)
    code = await result
    assert isinstance(code, int)
    return code


def _parse(parser: Parser, words: list[str]) -> argparse.Namespace | None:
    """The parsed words; None when help was asked for, and printed."""
    try:
        return parser.parse_args(words)
    except SystemExit:
        return None


def _version(context: Context) -> int:
    from dflash_console.cli.version import version

    if context.out.as_json:
        context.out.document({"version": version(), "python": sys.version.split()[0]})
    else:
        context.out.line(f"{PROGRAM} {version()}")
    return 0


def _helps(group: Group) -> dict[str, str]:
    return {name: leaf.help for name, leaf in group.commands.items()}


def _command_list() -> str:
    return _lines(COMMANDS) + (
        "\n\nwithout a command: the screens"
        "\nexit codes: 0 done, 1 the answer is no, 2 usage or configuration, 3 unreachable, 4 refused,"
        "\n            5 failed, 6 failed and not restored, 130 interrupted"
    )


def _lines(helps: dict[str, str]) -> str:
    width = max(map(len, helps))
    return "commands:\n" + "\n".join(f"  {name.ljust(width)}  {text}" for name, text in helps.items())


_DESCRIPTION = "Terminal console for SGLang servers with DFlash speculative decoding and DDTree."
