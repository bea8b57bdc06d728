"""``python -m retire_operator``."""

import sys

from retire_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
