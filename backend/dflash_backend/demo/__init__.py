"""The embedded cluster: a loopback SSH server with throw-away keys, and reference engines launched over it."""
