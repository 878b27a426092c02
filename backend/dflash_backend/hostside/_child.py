"""Becomes the server of a run: own session, clean signals, identity on disk, secrets read and gone, exec.

Copied into the run folder as ``child.py`` and started there by ``supervisor.sh``, its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def identity() -> str:
    """This process as the ``pid`` file records it."""
    with open("/proc/self/stat", "rb") as stream:
        raw = stream.read()
    fields = raw[raw.rfind(b")") + 1 :].split()
    with open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    start, group, session = int(fields[19]), int(fields[2]), int(fields[3])
    return f"pid={os.getpid()}\nstart={start}\nboot_id={boot}\npgid={group}\nsession={session}\n"


def main() -> int:
    """Never returns when all is well; else the shell's codes: 125 before the command, 126, 127 for it."""
    os.setsid()
    # Python ignores some signals and a shell's background job others; ignored ones would be inherited.
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        with open("environment", encoding="utf-8", errors="surrogatepass") as stream:
            plan = json.load(stream)
        os.unlink("environment")
        with open(".pid", "w") as stream:
            stream.write(identity())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(".pid", "pid")
    except (OSError, ValueError) as error:
        print(
            f"dflash-console: the run could not be recorded, so it was not started: {error}",
            file=sys.stderr,
        )
        return 125
    os.umask(plan["umask"])
    try:
        os.chdir(plan["cwd"])
        os.execve(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606 (an argument list, no shell)
    except OSError as error:
        print(f"dflash-console: cannot start {plan['argv'][0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
