"""``retire`` with a planted fault: vLLM starts through ``stack_planted_engine.py``, ungated.

Started in place of the command line by the negative control. Production code has no switch for it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retire.cli import main
from retire.cli.stack import children

STOCK = ("-m", "retire.engine.serve")
ENGINE = Path(__file__).with_name("stack_planted_engine.py")
_engine = children.engine


def engine(*args, **kwargs):
    """The engine's specification, with our script in place of the engine's module."""
    spec = _engine(*args, **kwargs)
    at = spec.argv.index(STOCK[0])
    assert spec.argv[at : at + 2] == STOCK, spec.argv
    return replace(spec, argv=(*spec.argv[:at], str(ENGINE), *spec.argv[at + 2 :]))


if __name__ == "__main__":
    children.engine = engine
    main()
