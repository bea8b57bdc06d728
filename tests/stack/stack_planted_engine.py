"""vLLM's API server with every gate open and no sweep: old versions go on as if nothing happened.

Runs in the API process and again, as the main module of a spawned child, in EngineCore.
"""

from __future__ import annotations

import runpy

from retire.engine.publication import Publication, Publications
from retire.engine.seams.runner import Done
from retire.engine.seams.safe_point import SafePoints
from retire.engine.seams.scheduler import RetireSchedulerMixin
from retire.mailbox import GateState

Publication.gate = lambda self: GateState.OPEN  # G4, G5, G6
Publications.switch = lambda self, key, to, why: {}  # acks, and ends nothing
Done._closed = lambda self, output: output  # G0
SafePoints._decide = lambda self, plan: None  # steps that are ended early
RetireSchedulerMixin.retire_stale = lambda self: None  # G1

if __name__ == "__main__":
    runpy.run_module("retire.engine.serve", run_name="__main__")
