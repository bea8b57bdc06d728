"""The ``retire`` command. Light on purpose: parts of the stack start as modules below it."""


def main() -> None:
    """Entry point of the distribution."""
    from retire.cli.app import run

    run()
