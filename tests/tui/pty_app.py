"""The console on fake services full of hostile text, to be started in a real terminal by ``test_tui_pty``.

``clean``: log lines come through the boundary as bytes from a host do. ``raw``: nothing was cleaned.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tui_fakes import FakeFleet, FakeLogs, fake_services, snapshot

from dflash_backend.core.text import LineDecoder
from dflash_console.tui.app import run

ATTACK = (
    "\x1b]0;owned\x07\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\x1b]8;;http://evil\x1b\\\x9d0;owned\x9c\x9b2J"
    '\x1bP$q"p\x1b\\ [/bold] [@click=app.quit] \u202egpj.exe \x1b]52;c;bm90IGVuZGVk'
)


def main() -> int:
    how, folder = sys.argv[1], Path(sys.argv[2])
    lines = [f"[TP0] MARK {i} {ATTACK} end" for i in range(40)]
    if how == "clean":
        decoder = LineDecoder()
        data = "\n".join(lines).encode() + b"\ninvalid \xff\xfe utf-8\n"
        lines = [line for i in range(0, len(data), 7) for line in decoder.feed(data[i : i + 7])]
    first = snapshot()
    attacked, *others = first.servers
    servers = (replace(attacked, message=ATTACK, host=ATTACK, profile=ATTACK), *others)
    hosts = tuple(replace(host, message=ATTACK) for host in first.hosts)
    return run(
        fake_services(
            fleet=FakeFleet(replace(first, servers=servers, hosts=hosts)),
            logs=FakeLogs(lines),
            save_dir=folder,
            log_dir=folder,
            pinned=(ATTACK,),
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
