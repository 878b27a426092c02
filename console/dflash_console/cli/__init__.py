"""The command line: every action of the screens has its twin here."""
