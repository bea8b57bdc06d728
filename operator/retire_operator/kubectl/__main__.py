"""``python -m retire_operator.kubectl``."""

from retire_operator.kubectl.app import main

main()
