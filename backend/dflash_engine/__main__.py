"""``python -m dflash_engine serve ...`` and ``python -m dflash_engine verify ...``."""

from __future__ import annotations

import os
import sys

_USAGE = """usage: python -m dflash_engine serve [options]    SGLang's HTTP surface over the reference engine
       python -m dflash_engine verify [options]   greedy equality and accept length per arm
"""


def main(argv: list[str]) -> int:
    """Dispatches; the default is ``serve``."""
    command, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("serve", argv)
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0
    # Small matrices: BLAS threads cost more than they give. Read when numpy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if command == "serve":
        from dflash_engine.server.serve import main as serve

        return serve(rest)
    if command == "verify":
        from dflash_engine.verification import main as verify

        return verify(rest)
    sys.stderr.write(_USAGE)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
