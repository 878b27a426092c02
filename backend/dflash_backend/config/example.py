"""A configuration file to begin with."""

EXAMPLE = """\
# dflash-console: hosts, servers and settings.

# Refuse everything that changes something; also as --read-only, and per host.
read_only = false

# More folders with profiles (*.toml); yours are also in the folder "profiles" beside this file.
# profile_dirs = ["~/models/profiles"]

# Profiles on the keys 1 to 9 of the fleet screen.
# pinned = ["kimi-k26-chain", "kimi-k26-ar"]

# A host is a machine reached by SSH. The address is an alias of ~/.ssh/config or [user@]host[:port].
[hosts.gpu1]
address = "gpu1"
# The Python that has sglang: an interpreter or the folder of a virtual environment.
python = "/opt/sglang-venv"
# env = { HF_HOME = "/data/huggingface" }
# read_only = true
# enabled = false

# A server is one SGLang endpoint on a host; the port listens on that host's 127.0.0.1.
[servers.kimi]
host = "gpu1"
port = 30000
profile = "kimi-k26-chain"

# Other keys on the screens; ? shows the actions.
# [keymap]
# audit = "v"
"""
