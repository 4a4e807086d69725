"""Entry of ``python -m safemodules``."""

import sys

from safemodules.cli import main

if __name__ == "__main__":
    sys.exit(main())
