"""The command palette: everything of the registry that the screen in front knows, and every server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from dflash_console.tui.actions import actions_in
from dflash_console.tui.keys import key_text, keys_of
from dflash_console.tui.look import ANSI_THEME, DARK, LIGHT, ROLES
from dflash_console.tui.safetext import clean
from dflash_console.tui.screens.base import ConsoleScreen


class ConsoleCommands(Provider):
    """Names are "group: title"; disabled actions are listed with the reason."""

    def _commands(self) -> list[tuple[str, str, Callable[[], object]]]:
        screen = self.screen
        if not isinstance(screen, ConsoleScreen):
            return []
        app, context = screen.console_app, screen.context()
        commands: list[tuple[str, str, Callable[[], object]]] = []
        for spec in actions_in(screen.WHERE):
            if spec.id.startswith("pin-") and int(spec.id[4:]) > len(context.services.pinned):
                continue
            decision = spec.decide(context)
            key = key_text(keys_of(spec, context.services.keymap))
            words = spec.description if decision.allowed else f"disabled because {decision.reason}"
            name = f"{spec.group}: {spec.title_in(context)}"
            commands.append(
                (clean(name, 80), clean(f"{key}   {words}", 160), partial(screen.action_act, spec.id))
            )
        for theme in (DARK.name, LIGHT.name, ANSI_THEME):
            commands.append(
                (f"view: theme {theme}", "colours of the screen", partial(setattr, app, "theme", theme))
            )
        for server in app.snapshot.servers:
            words = f"{server.state} on {server.host}"
            commands.append(
                (
                    clean(f"server: {server.name}", 80),
                    clean(words, 160),
                    partial(app.open_server, server.name),
                )
            )
        return commands

    async def discover(self) -> Hits:
        """All of it."""
        for name, words, command in self._commands():
            yield DiscoveryHit(_shown(Content(name), words), command, text=name)

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for name, words, command in self._commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, _shown(matcher.highlight(name), words), command, text=name)


def _shown(name: Content, words: str) -> Content:
    """Both in one content: Textual reads its own ``help`` as markup, whatever stands in it."""
    return Content.assemble(name, "   ", (words, ROLES["dim"]))
