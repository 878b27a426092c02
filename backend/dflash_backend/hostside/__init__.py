"""Programs that run on the GPU host: standard library only, Python 3.8 or newer, sent over stdin.

They are read as text and never imported by the console. Each module ``NAME.py`` here defines

    def main(request, emit, stdin):
        '''``request`` is the decoded JSON; the return value becomes the answer ``{"ok": …}``.'''

* ``emit(value)`` writes one JSON line at once; for programs that stream.
* ``stdin`` is the binary stream after the request line, left open for as long as the channel lives; end of
  file means that the console has gone.
* An exception ends the program with ``{"error": {"kind", "what", "next"}}``. Its attributes ``kind``
  ("failed", "refused", "usage", "config"; default "failed") and ``next`` (the next step, default "") are
  passed on, so a program defines its own exception class with these two.
* ``print`` and whatever child processes write to standard output go to standard error: only ``emit`` and the
  answer reach the console.

A program may be cut into modules: it imports siblings with ``from dflash_backend.hostside import _gpu`` (or
``from _gpu import …``), and those travel with it.

The console runs such a program with ``HostLink.run_program`` or ``stream_program``; ``prelude.py`` is sent
ahead of it and does the talking (see ``dflash_backend.ssh.programs`` for the bytes on the wire).
"""
