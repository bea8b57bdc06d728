"""Commands and errors: one file a command; what a command needs is imported when it runs.

Owns the mapping of errors to one clear line and an exit status: 2 for a bad value, 1 for the rest.
"""

from __future__ import annotations

import sys

import typer

from retire.cli.cancel import cancel
from retire.cli.check import check
from retire.cli.demo.command import demo
from retire.cli.pause import pause, resume
from retire.cli.serve import serve
from retire.cli.status import status
from retire.cli.supersede import supersede
from retire.cli.top import top
from retire.protocol.errors import Forbidden, InvalidField, RetireError, Unauthenticated

EXTRA_ARGS = {"allow_extra_args": True, "ignore_unknown_options": False}

app = typer.Typer(
    name="retire",
    help="Versioned execution for LLM serving: supersede, fence, inherit, reclaim.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(context_settings=EXTRA_ARGS)(serve)
for command in (status, top, supersede, cancel, pause, resume, check, demo):
    app.command()(command)


def _said(error: RetireError) -> str:
    """The error, and what of the command line mends it."""
    match error:
        case Unauthenticated():
            return f"not authenticated (401): {error}; set --token or RETIRE_TOKEN"
        case Forbidden():
            return f"not allowed (403): {error}"
        case _:
            return str(error)


def run() -> None:
    """Parse the command line, run the command, map its errors."""
    try:
        app()
    except RetireError as error:
        print(f"retire: {_said(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidField) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
