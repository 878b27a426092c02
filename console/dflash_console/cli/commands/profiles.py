"""``profiles``: list, show, validate, diff and new."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_backend.core.errors import ConsoleError
from dflash_console.cli.command import Context, Group, Leaf

if TYPE_CHECKING:
    from dflash_backend.core.profile import Profile
    from dflash_backend.profiles.lint import LintReport
    from dflash_backend.profiles.store import ProfileStore


def load(store: ProfileStore, name: str) -> Profile:
    """A profile by name, or by path when ``name`` looks like one."""
    if "/" in name or name.endswith(".toml"):
        return store.load_path(Path(name).expanduser())
    return store.load(name)


def profile_json(profile: Profile) -> dict[str, Any]:
    """A resolved profile as JSON; secrets are references."""
    from dflash_backend.profiles.file import spell_env

    return {
        "name": profile.name,
        "description": profile.description,
        "program": profile.program.value,
        "target": profile.target,
        "drafter": profile.drafter,
        "algorithm": profile.algorithm.value,
        "window": profile.window,
        "budget": profile.budget,
        "topk": profile.topk,
        "block_size": profile.block_size,
        "options": dict(profile.options),
        "extra": list(profile.extra),
        "env": {name: spell_env(content) for name, content in profile.env.items()},
        "ready_timeout_s": profile.ready_timeout_s,
        "stop_grace_s": profile.stop_grace_s,
        "origin": profile.origin,
        "shipped": profile.shipped,
        "digest": profile.digest,
    }


def list_(args: argparse.Namespace, context: Context) -> int:
    """All profiles; a damaged one is a row that says so, and makes the exit code 2."""
    store = context.profiles
    rows: list[dict[str, Any]] = []
    for entry in store.entries():
        row: dict[str, Any] = {"name": entry.name, "path": str(entry.path), "shipped": entry.shipped}
        row["shadows"] = [str(path) for path in entry.shadows]
        try:
            row |= profile_json(store.load(entry.name)) | {"error": None}
        except ConsoleError as error:
            row["error"] = "\n".join(error.lines())
        rows.append(row)
    for folder in store.missing_folders():
        context.out.note(f"note: the configured profile folder {folder} does not exist")
    if context.out.as_json:
        context.out.document({"profiles": rows})
    else:
        context.out.table(
            ["name", "algorithm", "window", "B/k", "from", "description"], [_row(row) for row in rows]
        )
        for row in rows:
            if row["shadows"]:
                context.out.note(f"note: {row['name']}: {row['path']} hides {', '.join(row['shadows'])}")
    broken = [row for row in rows if row["error"]]
    for row in broken:
        context.out.note(f"error: {row['error']}")
    return 2 if broken else 0


def _row(row: dict[str, Any]) -> list[str]:
    source = "shipped" if row["shipped"] else "yours"
    if row["error"]:
        return [row["name"], "–", "–", "–", source, "cannot be used, see below"]
    tree = f"{row['budget'] or '–'}/{row['topk'] or '–'}" if row["algorithm"] == "DDTREE" else "–"
    window = "–" if row["algorithm"] == "NONE" else str(row["window"])
    return [row["name"], row["algorithm"], window, tree, source, row["description"]]


def show(args: argparse.Namespace, context: Context) -> int:
    """One profile, resolved, as the TOML that would be kept beside a run."""
    from dflash_backend.profiles.serialise import profile_to_toml

    store = context.profiles
    profile = load(store, args.profile)
    if context.out.as_json:
        context.out.document(
            {"profile": profile_json(profile), "chain": [file.path for file in store.chain_of(profile)]}
        )
        return 0
    for file in store.chain_of(profile):
        context.out.line(f"# {file.path}")
    context.out.line(profile_to_toml(profile).rstrip("\n"))
    return 0


def configure_show(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``profiles show``."""
    parser.add_argument("profile", help="a name, or the path of a profile file")


def validate(args: argparse.Namespace, context: Context) -> int:
    """Files, option names and values; which releases launch it. Exit 2 for a mistake, 1 when refused."""
    from dflash_backend.profiles.lint import lint

    store = context.profiles
    names = args.profile or [entry.name for entry in store.entries()]
    versions = [args.sglang_version] if args.sglang_version else []
    results: list[dict[str, Any]] = []
    worst = 0
    for name in names:
        try:
            profile = load(store, name)
            report = lint(profile, store.chain_of(profile), versions=versions)
        except ConsoleError as error:
            results.append(_broken(name, error))
            worst = 2
            continue
        results.append(_verdict(name, report))
        if report.problems:
            worst = 2
        elif worst == 0 and versions and report.verdicts[0].refusals:
            worst = 1
    if context.out.as_json:
        context.out.document({"results": results})
        return worst
    for result in results:
        _print_verdict(result, context, detailed=bool(args.profile))
    return worst


def _broken(name: str, error: ConsoleError) -> dict[str, Any]:
    problems = list(error.lines())
    return {"profile": name, "ok": False, "problems": problems, "dangerous": [], "releases": []}


def _verdict(name: str, report: LintReport) -> dict[str, Any]:
    return {
        "profile": name,
        "ok": not report.problems,
        "problems": [str(problem) for problem in report.problems],
        "dangerous": list(report.dangerous),
        "releases": [
            {"release": v.release, "refusals": list(v.refusals), "warnings": list(v.warnings)}
            for v in report.verdicts
        ],
    }


def _print_verdict(result: dict[str, Any], context: Context, *, detailed: bool) -> None:
    out = context.out
    releases = result["releases"]
    can = [r["release"] for r in releases if not r["refusals"]]
    if not result["ok"]:
        out.line(f"{result['profile']}: not valid")
    elif can:
        out.line(f"{result['profile']}: valid; launches on {_span(can)}")
    else:
        out.line(f"{result['profile']}: valid, but no stock release launches it")
    for problem in result["problems"]:
        out.line(f"  error: {problem}")
    if not detailed:
        return
    for text in result["dangerous"]:
        out.line(f"  dangerous: {text}")
    for kind, word in (("refusals", "refused"), ("warnings", "warning")):
        by_text: dict[str, list[str]] = {}
        for release in releases:
            name = release["release"]
            for text in release[kind]:
                # The release's own name in a text would make each of them different.
                by_text.setdefault(text.replace(f"SGLang {name}", "SGLang"), []).append(name)
        for text, names in by_text.items():
            out.line(f"  {word} on {_span(names)}: {text}")


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def configure_validate(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``profiles validate``."""
    parser.add_argument("profile", nargs="*", help="names or paths of profile files (default: all)")
    parser.add_argument("--sglang-version", metavar="V", help="check against this release only")


def diff(args: argparse.Namespace, context: Context) -> int:
    """What differs between two profiles, resolved. Exit 1 when something does."""
    from dflash_backend.profiles.compare import differences

    store = context.profiles
    before, after = load(store, args.before), load(store, args.after)
    found = differences(before, after)
    if context.out.as_json:
        context.out.document(
            {
                "before": before.name,
                "after": after.name,
                "same_launch": before.digest == after.digest,
                "differences": [{"name": d.name, "before": d.before, "after": d.after} for d in found],
            }
        )
    elif found:
        context.out.table(
            ["setting", before.name, after.name],
            [
                [d.name, "–" if d.before is None else d.before, "–" if d.after is None else d.after]
                for d in found
            ],
        )
    else:
        context.out.line("no difference")
    return 1 if found else 0


def configure_diff(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``profiles diff``."""
    parser.add_argument("before")
    parser.add_argument("after")


def new(args: argparse.Namespace, context: Context) -> int:
    """Writes a commented file to begin with; never overwrites one."""
    from dflash_backend.core.errors import RefusedError
    from dflash_backend.profiles.template import new_profile

    if context.read_only:
        raise RefusedError("read-only: no profile is written", unchanged="nothing was changed")
    path = new_profile(context.profiles, args.name, base=args.base)
    if context.out.as_json:
        context.out.document({"path": str(path)})
    else:
        context.out.line(str(path))
    return 0


def configure_new(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``profiles new``."""
    parser.add_argument("name")
    parser.add_argument("--from", dest="base", metavar="PROFILE", help="the profile to extend")


COMMAND = Group(
    help="saved ways to launch a server",
    commands={
        "list": Leaf(help="all profiles and where they come from", run=list_),
        "show": Leaf(help="one profile with everything that it extends", run=show, configure=configure_show),
        "validate": Leaf(
            help="check files, option names and values; say which releases launch it",
            run=validate,
            configure=configure_validate,
        ),
        "diff": Leaf(help="what differs between two profiles", run=diff, configure=configure_diff),
        "new": Leaf(help="write a profile that extends another one", run=new, configure=configure_new),
    },
)
