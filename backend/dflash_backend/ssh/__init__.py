"""Everything that knows SSH: configuration, host keys, connections, channels, programs, forwards.

``pool.SshPool`` is the way in; ``link`` holds the contract that the rest of the backend relies on.
asyncssh is imported on the first connection, never at import time.
"""
