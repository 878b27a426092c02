"""A resolved profile as TOML: what is kept beside a run, complete and without secrets."""

from __future__ import annotations

import json
import math

from dflash_backend.core.profile import OptionValue, Profile
from dflash_backend.profiles.file import spell_env


def profile_to_toml(profile: Profile) -> str:
    """The profile as a file that loads to the same digest. Secrets are references, as in the profile."""
    head: dict[str, OptionValue | None] = {
        "description": profile.description or None,
        "program": profile.program.value,
        "target": profile.target,
        "drafter": profile.drafter,
        "algorithm": profile.algorithm.value,
        "window": profile.window if profile.drafter else None,
        "budget": profile.budget,
        "topk": profile.topk,
        "block_size": profile.block_size,
        "ready_timeout_s": profile.ready_timeout_s,
        "stop_grace_s": profile.stop_grace_s,
    }
    lines = [f"# resolved profile {profile.name}, sha256 {profile.digest}"]
    lines += [f"{key} = {toml_value(value)}" for key, value in head.items() if value is not None]
    if profile.extra:
        lines.append(f"extra = [{', '.join(toml_value(word) for word in profile.extra)}]")
    for title, table in (("options", profile.options), ("env", profile.env)):
        if table:
            lines += ["", f"[{title}]"]
            lines += [
                f"{_key(name)} = {toml_value(spell_env(value) if title == 'env' else value)}"  # type: ignore[arg-type]
                for name, value in table.items()
            ]
    return "\n".join(lines) + "\n"


def toml_value(value: OptionValue) -> str:
    """One value in TOML's spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int | float):
        return repr(value)
    # JSON's escapes are TOML's, but for DEL, and surrogates cannot come from a TOML file.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    bare = name.replace("-", "").replace("_", "")
    return name if bare.isascii() and bare.isalnum() else toml_value(name)
