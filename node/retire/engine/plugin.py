"""The ``vllm.general_plugins`` entry: installs every seam, in every process of vLLM.

vLLM loads it in each API server, in EngineCore and in each worker, sometimes twice; it is
idempotent and does not ask which process it is in. Without ``RETIRE_MAILBOX`` it does nothing:
plain vLLM. With it, an engine that cannot be fenced must not serve: SystemExit, because vLLM only
logs other exceptions of some plugin loaders.
"""

from __future__ import annotations

import os
from typing import Final

MAILBOX_ENV: Final = "RETIRE_MAILBOX"


def _log_as_told() -> None:
    from retire.protocol.errors import InvalidField
    from retire.telemetry import logs

    try:
        logs.setup_from_env(os.environ)
    except InvalidField as error:
        raise SystemExit(f"retire: refusing to serve: {error}") from error


def register() -> None:
    """Probe this vLLM, then open the seams."""
    if not os.environ.get(MAILBOX_ENV):
        return
    _log_as_told()
    from retire.engine.seams import compat, openai, seeds

    try:
        compat.probe((*compat.SYMBOLS, *seeds.SYMBOLS, *openai.SYMBOLS))
    except compat.SeamMismatch as mismatch:
        raise SystemExit(f"retire: refusing to serve: {mismatch}") from mismatch
    from retire.engine.seams import core, delivery, fenceable, output, runner, scheduler, tags

    for seam in (fenceable, scheduler, core, runner, seeds, tags, delivery, output):
        seam.install()
