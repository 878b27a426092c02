"""Programs that run on the GPU host: standard library only, Python 3.8 or newer, sent over stdin.

They are read as text and never imported by the console. Each one reads a JSON request from the line after
its source (see ``dflash_backend.ssh``) and answers in JSON lines.
"""
