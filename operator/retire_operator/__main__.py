"""``python -m retire_operator``."""

import sys

from retire_operator.main import main

sys.exit(main())
