"""From a profile to the command that launches it: one builder, the right spelling for each release.

``compose`` never raises for what a release cannot do: it collects every reason, so that a plan can show the
command and all that stands against it. ``build_argv`` is the form for launching: it raises.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_backend.core.profile import OptionValue, Profile, Program, SecretRef
from dflash_backend.sglang.command import BuiltCommand, Draft, HostAbilities
from dflash_backend.sglang.engine_argv import compose_engine
from dflash_backend.sglang.hazards import mark_hazards, without_secrets
from dflash_backend.sglang.options import Option, option_table
from dflash_backend.sglang.speculation import add_speculation
from dflash_backend.sglang.values import value_problem, value_words
from dflash_backend.sglang.versions import Release, release

MANAGED: Mapping[str, str] = {
    "model-path": "target",
    "model": "target",
    "port": "the server's port in the configuration file",
    "host": 'host = "…" under [options]',
    "speculative-algorithm": "algorithm",
    "speculative-draft-model-path": "drafter",
    "speculative-draft-model": "drafter",
    "speculative-draft-window-size": "window",
    "speculative-dflash-draft-window-size": "window",
    "speculative-dflash-block-size": "block_size",
    "speculative-ddtree-budget": "budget",
    "speculative-ddtree-topk": "topk",
}
"""Options that have a field of their own in a profile (or elsewhere) and are refused as options."""

LOG_INTERVAL = 20
"""Decode steps between two log lines: SGLang's own 40 is over a second for a large target with drafts."""

REFERENCE_VERSION = "0.5.14"
"""The release whose surface the reference engine speaks."""


def interpreter(python: str | None) -> str:
    """The interpreter of a host entry: a venv folder or an interpreter as configured, else ``python3``."""
    if not python:
        return "python3"
    last = python.rstrip("/").rsplit("/", 1)[-1]
    return python if last.startswith(("python", "pypy")) else python.rstrip("/") + "/bin/python"


def compose(
    profile: Profile,
    version: str,
    *,
    python: str | None,
    port: int,
    host: str = "127.0.0.1",
    abilities: HostAbilities | None = None,
) -> BuiltCommand:
    """The command for ``profile`` on a host with this SGLang ``version``, with all that stands against it.

    ``python`` is the host's interpreter or venv folder. ``version`` is ignored for the reference engine.
    Raises ConfigError or RefusedError only when ``version`` is no version or too old to be known.
    """
    known = abilities or HostAbilities()
    draft = Draft()
    if profile.program is Program.REFERENCE:
        compose_engine(draft, profile, port=port, host=host)
        return _finish(draft, profile, interpreter(python), "dflash_engine")
    facts = release(version)
    draft.notes.extend(facts.notes)
    draft.add("model-path", profile.target)
    bound = profile.options.get("host", host)
    draft.add("host", bound)
    draft.add("port", port)
    add_speculation(draft, profile, facts, known)
    options = {name: value for name, value in profile.options.items() if name != "host"}
    _add_options(draft, options, facts, known)
    if "enable-metrics" not in options:
        draft.add("enable-metrics")
    if "decode-log-interval" not in options:
        draft.add("decode-log-interval", LOG_INTERVAL)
    _add_extra(draft, profile.extra, facts, known)
    mark_hazards(draft, profile, bound)
    return _finish(draft, profile, interpreter(python), "sglang.launch_server")


def build_argv(
    profile: Profile,
    version: str,
    *,
    python: str | None,
    port: int,
    host: str = "127.0.0.1",
    abilities: HostAbilities | None = None,
) -> BuiltCommand:
    """Like ``compose``, but raises ConfigError or RefusedError when anything stands against the launch."""
    command = compose(profile, version, python=python, port=port, host=host, abilities=abilities)
    error = command.error()
    if error is not None:
        error.where = error.where or profile.origin or profile.name
        raise error
    return command


def _finish(draft: Draft, profile: Profile, python: str, module: str) -> BuiltCommand:
    plain = {name: value for name, value in profile.env.items() if isinstance(value, str)}
    secret = {name: value for name, value in profile.env.items() if isinstance(value, SecretRef)}
    return BuiltCommand(
        argv=(python, "-m", module, *without_secrets(draft.words)),
        env=draft.env | plain,
        secret_env=secret,
        notes=tuple(dict.fromkeys(draft.notes)),
        warnings=tuple(dict.fromkeys(draft.warnings)),
        refusals=tuple(dict.fromkeys(draft.refusals)),
    )


def _add_options(
    draft: Draft, options: Mapping[str, OptionValue], facts: Release, known: HostAbilities
) -> None:
    set_by: dict[str, str] = {}
    for name, value in options.items():
        if name in MANAGED:
            _refuse_managed(draft, name, about=("options", name))
            continue
        found = _spell(draft, name, value, facts)
        if found is None:
            if known.options is not None and name in known.options:
                draft.note(f"--{name} is not an option of {facts.name}, but the host's SGLang lists it")
                _add_unchecked(draft, name, value)
            elif value is not False:
                _refuse_unknown(draft, name, facts, about=("options", name))
            continue
        option, spelled_value = found
        if value is not False:
            other = set_by.setdefault(option.field, name)
            if other != name:
                draft.reject(
                    f"options {other} and {name} set the same thing in SGLang {facts.name}",
                    "take one of them out",
                    about=("options", name),
                )
                continue
        _add_checked(draft, option, name, spelled_value, facts, known)


def _spell(draft: Draft, name: str, value: OptionValue, facts: Release) -> tuple[Option, OptionValue] | None:
    """The option and value by which this release says ``name = value``; None when it cannot say it."""
    table = option_table()
    here = table.at(facts.name)
    flag = table.flag_for(name, value, facts.name)
    if flag is not None:
        draft.note(f"--{name} {value} is spelled --{flag} in {facts.name}")
        return here[flag], True
    spelled = table.spelling(name, facts.name)
    if spelled is None:
        return None
    there, fixed = spelled
    if there != name:
        draft.note(f"--{name} is spelled --{there}{f' {fixed}' if fixed else ''} in {facts.name}")
    # A bare flag that became an option with a value: only true says that value.
    return here[there], fixed if fixed is not None and value is True else value


def _add_checked(
    draft: Draft, option: Option, asked: str, value: OptionValue, facts: Release, known: HostAbilities
) -> None:
    problem = value_problem(option, value)
    if problem is not None:
        others = [o for o in option_table().history(option.name) if value_problem(o, value) is None]
        say = draft.refuse if others else draft.reject
        hint = f"SGLang {others[-1].first} to {others[-1].last} would take it" if others else ""
        say(f"option {asked} {problem} in {facts.name}", hint, about=("options", asked))
        return
    words = value_words(option, value)
    if not words:
        return
    if option.retired:
        draft.refuse(
            f"SGLang {facts.name} stops when it is given --{option.name}: the option has been retired",
            "take it out of the profile",
            about=("options", asked),
        )
        return
    if option.deprecated:
        instead = f"; it says to use {option.replacement}" if option.replacement else ""
        draft.note(f"--{option.name} is deprecated in {facts.name}{instead}")
    if known.options is not None and not option.hidden and option.name not in known.options:
        draft.refuse(
            f"--{option.name} is an option of {facts.name}, but the SGLang on this host does not list it",
            "run 'hosts check' to see what is installed there",
            about=("options", asked),
        )
        return
    draft.words.extend(words)


def _add_unchecked(draft: Draft, name: str, value: OptionValue) -> None:
    if value is True:
        draft.add(name)
    elif value is not False:
        draft.add(name, value)


def _refuse_managed(draft: Draft, name: str, *, about: tuple[str, ...]) -> None:
    draft.reject(f"option {name} is not set here", f"set it by {MANAGED[name]}", about=about)


def _refuse_unknown(draft: Draft, name: str, facts: Release, *, about: tuple[str, ...]) -> None:
    table = option_table()
    span = table.span(name)
    if span is not None:
        first, last = span
        newer = table.releases.index(first) > table.releases.index(facts.name)
        when = f"came with {first}" if newer else f"is gone since {last}"
        draft.refuse(
            f"SGLang {facts.name} has no option --{name}: it {when}",
            f"take it out of the profile or use a release from {first} to {last}",
            about=about,
        )
        return
    nearest = table.nearest(name, facts.name)
    draft.reject(
        f"no SGLang release has an option --{name}",
        f"did you mean {nearest}?" if nearest else "see 'python -m sglang.launch_server --help' on the host",
        about=about,
    )


def _add_extra(draft: Draft, extra: tuple[str, ...], facts: Release, known: HostAbilities) -> None:
    """Appends the extra words as they are, after a look at every option name among them."""
    for word in extra:
        if not word.startswith("--"):
            if word.startswith("-") and not word[1:2].isdigit() and word[1:2] != ".":
                draft.reject(
                    f"extra word '{word}' is no SGLang option", "options start with --", about=("extra",)
                )
            continue
        name = word[2:].partition("=")[0]
        if name in MANAGED:
            _refuse_managed(draft, name, about=("extra",))
        elif not facts.knows(name) and not (known.options is not None and name in known.options):
            _refuse_unknown(draft, name, facts, about=("extra",))
    draft.words.extend(extra)
