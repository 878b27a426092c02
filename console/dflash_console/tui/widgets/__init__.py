"""Widgets on Textual's line API: they repaint only what changed and never parse markup."""
