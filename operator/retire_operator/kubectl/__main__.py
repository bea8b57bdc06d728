"""``python -m retire_operator.kubectl``."""

from retire_operator.kubectl.app import main

if __name__ == "__main__":
    main()
