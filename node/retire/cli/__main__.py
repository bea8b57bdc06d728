"""``python -m retire.cli``: the same as ``retire``."""

from retire.cli import main

main()
