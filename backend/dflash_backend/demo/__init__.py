"""The embedded cluster: a loopback SSH server with throw-away keys, and the engines launched over it."""
