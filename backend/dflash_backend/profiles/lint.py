"""What is wrong with a profile whatever host it meets, and which SGLang releases can launch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_backend.config.toml import Problem
from dflash_backend.core.profile import Profile, Program
from dflash_backend.profiles.resolve import Chain
from dflash_backend.sglang.argv import compose
from dflash_backend.sglang.command import HostAbilities, Refusal
from dflash_backend.sglang.versions import releases

_PORT = 30000
"""Any port: nothing is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseVerdict:
    """Whether one release can launch a profile: it can when ``refusals`` is empty."""

    release: str
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """``problems`` are mistakes in the files; ``dangerous`` are options that need a confirmation."""

    problems: tuple[Problem, ...] = ()
    dangerous: tuple[str, ...] = ()
    verdicts: tuple[ReleaseVerdict, ...] = ()


def lint(
    profile: Profile,
    chain: Chain,
    *,
    versions: Sequence[str] = (),
    abilities: HostAbilities | None = None,
) -> LintReport:
    """Builds the command for each of ``versions`` (default: every known release) and sums up.

    A mistake is what each of them rejects as wrong in itself: an option that no release knows, a value that
    none takes. What only some cannot do stands in their verdicts.
    """
    asked = tuple(versions) or releases()
    if profile.program is not Program.SGLANG:
        asked = (profile.program.value,)
    built = {v: compose(profile, v, python=None, port=_PORT, abilities=abilities) for v in asked}
    newest = built[asked[-1]]
    rejected = [{r.about for r in command.refusals if r.kind == "config"} for command in built.values()]
    always = set.intersection(*rejected)
    return LintReport(
        problems=tuple(
            _problem(chain, r) for r in newest.refusals if r.kind == "config" and r.about in always
        ),
        dangerous=tuple(dict.fromkeys(w.text for b in built.values() for w in b.warnings if w.dangerous)),
        verdicts=tuple(
            ReleaseVerdict(
                release=version,
                refusals=tuple(r.text for r in command.refusals),
                warnings=tuple(w.text for w in command.warnings if not w.dangerous),
            )
            for version, command in built.items()
        ),
    )


def _problem(chain: Chain, refusal: Refusal) -> Problem:
    """The refusal at the line of the file that sets what it is about."""
    text = f"{refusal.text} ({refusal.next_step})" if refusal.next_step else refusal.text
    for file in chain:
        if file.lines.has(refusal.about):
            return file.problem(refusal.about, text)
    return chain[0].problem(refusal.about, text)
