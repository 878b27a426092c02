"""``python -m dflash_console``."""

import sys

from dflash_console.cli.main import main

sys.exit(main())
