"""Configuration files: strict TOML with file and line in every error; hosts, servers and settings."""
