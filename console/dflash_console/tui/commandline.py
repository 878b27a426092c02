"""The line typed after ``:``: where to go, in few words."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_console.tui.app import DflashApp

WORDS = ("fleet", "hosts", "bench", "help", "log", "profile", "quit")


def run(app: DflashApp, text: str) -> None:
    """Goes where ``text`` says; tells what it does not understand, with the nearest that it does."""
    word, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    word = {"q": "quit", "logs": "log", "?": "help", "p": "profile"}.get(word, word)
    servers = {server.name for server in app.snapshot.servers}
    if text.strip() in servers:
        app.open_server(text.strip())
    elif word == "quit" and not rest:
        app.background(app, app.action_quit, "quit", group="command")
    elif word == "fleet" and not rest:
        while len(app.screen_stack) > 1:
            app.pop_screen()
    elif word == "hosts":
        app.open_hosts(rest or None)
    elif word in ("help", "bench") and not rest:
        app.background(app, lambda: app.screen.run_action(f"act('{word}')"), word, group="command")
    elif word in ("log", "profile") and rest in servers:
        (app.open_logs if word == "log" else app.open_picker)(rest)
    elif word in ("log", "profile"):
        app.tell(f"{word} needs the name of a server" + _nearest(rest, servers), "warning")
    else:
        app.tell(
            f"no command or server is called {text.strip()}" + _nearest(text, {*servers, *WORDS}), "warning"
        )


def _nearest(text: str, names: set[str]) -> str:
    near = difflib.get_close_matches(text.strip(), sorted(names), 1)
    return f": did you mean {near[0]}?" if near else ""
