"""Profiles: saved, named ways to launch a server, from TOML files that may extend one another."""
