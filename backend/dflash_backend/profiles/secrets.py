"""Reads secrets from where a profile says they are: on this machine, at launch, and never before."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

from dflash_backend.config.toml import writable_by_others
from dflash_backend.core.errors import ConfigError
from dflash_backend.core.profile import Profile, SecretRef

COMMAND_TIMEOUT_S = 30.0
MAX_SECRET = 64 * 1024


def resolve_env(profile: Profile) -> tuple[dict[str, str], dict[str, str]]:
    """(plain environment, secret environment with values). Blocks while a command runs.

    Raises ConfigError, which names the reference and never the value, when a secret cannot be had.
    """
    plain = {name: value for name, value in profile.env.items() if isinstance(value, str)}
    secret = {
        name: resolve(reference, where=f"{profile.origin or profile.name}: env.{name}")
        for name, reference in profile.env.items()
        if isinstance(reference, SecretRef)
    }
    return plain, secret


def resolve(reference: SecretRef, *, where: str) -> str:
    """The secret behind a reference, without the line end that files and programs put after it."""
    match reference.scheme:
        case "env":
            value = os.environ.get(reference.target)
            if value is None:
                raise _missing(reference, where, "the variable is not set", f"export {reference.target}=…")
        case "file":
            value = _from_file(reference, where)
        case "command":
            value = _from_command(reference, where)
    value = value.rstrip("\r\n")
    if not value:
        raise _missing(reference, where, "it is empty", "check where the secret comes from")
    if "\0" in value or "\n" in value or len(value) > MAX_SECRET:
        raise _missing(reference, where, "it is not one line of text", "store the secret alone on one line")
    return value


def _missing(reference: SecretRef, where: str, why: str, next_step: str) -> ConfigError:
    return ConfigError(f"the secret {reference} cannot be read: {why}", where=where, next_step=next_step)


def _from_file(reference: SecretRef, where: str) -> str:
    path = Path(reference.target).expanduser()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _missing(reference, where, "it is not a regular file", "store the secret alone in a file")
        if reason := writable_by_others(status):
            raise _missing(reference, where, reason, f"chmod 600 {path}")
        if status.st_mode & stat.S_IROTH:
            raise _missing(reference, where, "every user of this machine can read it", f"chmod 600 {path}")
        if status.st_size > MAX_SECRET:
            raise _missing(reference, where, "it is too large", "store the secret alone in a file")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise _missing(reference, where, "it is not UTF-8 text", "store the secret as text") from None
    except OSError as error:
        raise _missing(reference, where, error.strerror or "unreadable", f"check {path}") from None


def _from_command(reference: SecretRef, where: str) -> str:
    argv = shlex.split(reference.target)
    try:
        # Its standard error goes to the terminal: a password manager may ask there.
        done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise _missing(
            reference, where, f"there is no program {argv[0]}", "install it or fix the profile"
        ) from None
    except OSError as error:
        raise _missing(reference, where, error.strerror or "it cannot run", "check the program") from None
    except subprocess.TimeoutExpired:
        raise _missing(
            reference, where, f"no answer within {COMMAND_TIMEOUT_S:.0f} s", "run it once by hand"
        ) from None
    if done.returncode != 0:
        raise _missing(
            reference, where, f"the program ended with status {done.returncode}", "run it once by hand"
        )
    try:
        return done.stdout.decode("utf-8")
    except UnicodeDecodeError:
        raise _missing(reference, where, "it is not UTF-8 text", "check the program") from None
