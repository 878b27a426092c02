"""Runs: launches of servers that outlive the console, and can be found again from the host alone."""
