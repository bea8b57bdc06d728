"""Seam G4: output of a retired version is dropped before it is detokenized.

Wraps ``vllm.v1.engine.output_processor.OutputProcessor.process_outputs``. Text held back for
``stream_interval`` or by a stop string never comes into being for a stale request, and the event
loop does not detokenize what nobody may see. Tested with vLLM 0.26.0; no upstream hook.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.engine.output_processor import OutputProcessor

from retire.engine.seams.delivery import GatedCollector
from retire.mailbox import GateState

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput

_MARK: Final = "__retire_seam__"


def install() -> None:
    """Wrap the method; a second call changes nothing."""
    if not installed():
        OutputProcessor.process_outputs = _dropping(OutputProcessor.process_outputs)  # type: ignore[method-assign]


def installed() -> bool:
    """Whether the seam is in place in this process."""
    return hasattr(OutputProcessor.process_outputs, _MARK)


def publishable(processor: OutputProcessor, output: EngineCoreOutput) -> bool:
    """False for output of a request whose version is retired; a first such sight ends it."""
    state = processor.request_states.get(output.request_id)
    queue = state.queue if state is not None else None
    return not isinstance(queue, GatedCollector) or (
        queue.publication.gate() is not GateState.STALE
    )


def _dropping(original: Any) -> Any:
    @functools.wraps(original)
    def process_outputs(
        self: OutputProcessor,
        engine_core_outputs: list[EngineCoreOutput],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        kept = []
        for output in engine_core_outputs:
            if publishable(self, output):
                kept.append(output)
            else:  # forget it here too: the output that would have ended it may be this one
                self.abort_requests([output.request_id], internal=True)
        return original(self, kept, *args, **kwargs)

    setattr(process_outputs, _MARK, True)
    return process_outputs
