"""The actions of screens that show a log."""

from __future__ import annotations

from dflash_console.tui.deciders import Context
from dflash_console.tui.screens.base import ConsoleScreen
from dflash_console.tui.widgets.logpanel import LogPanel


class LogActions(ConsoleScreen):
    """Follow, wrap, filter, copy, save."""

    @property
    def log_panel(self) -> LogPanel:
        """The panel of the log."""
        return self.query_one(LogPanel)

    def do_follow(self, context: Context) -> None:
        """Follows, or pauses."""
        view = self.log_panel.view
        view.follow = not view.follow

    def do_wrap(self, context: Context) -> None:
        """Wraps, or not."""
        view = self.log_panel.view
        view.wrap = not view.wrap

    def do_copy(self, context: Context) -> None:
        """Copies lines."""
        self.log_panel.copy()

    def do_save(self, context: Context) -> None:
        """Saves lines."""
        self.log_panel.save()

    def set_filter(self, text: str) -> None:
        """Filters the log."""
        self.filter_text = text
        self.log_panel.view.filter = text
