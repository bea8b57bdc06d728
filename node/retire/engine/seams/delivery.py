"""Seam G5, the normative gate: output of a scope is checked when its consumer dequeues it.

Replaces the name ``RequestOutputCollector`` in ``vllm.v1.engine.async_llm`` (imported there from
``output_processor``); AsyncLLM builds one per request right after ``process_inputs``, in the same
task, so the running publication is its owner. ``AsyncLLM.abort`` alone would not do: its final
output is merged into what waits and delivered. Tested with vLLM 0.26.0; no upstream hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.outputs import CompletionOutput, PoolingRequestOutput, RequestOutput
from vllm.v1.engine import async_llm
from vllm.v1.engine.output_processor import RequestOutputCollector

from retire.engine.deliveries import Deliveries
from retire.engine.publication import CURRENT, Ended
from retire.mailbox import GateState

if TYPE_CHECKING:
    from vllm.sampling_params import RequestOutputKind

    from retire.engine.publication import Publication


class GatedCollector(RequestOutputCollector):
    """A collector that belongs to a publication: nothing leaves it unless the gate is open."""

    def __init__(
        self, output_kind: RequestOutputKind, request_id: str, publication: Publication
    ) -> None:
        super().__init__(output_kind, request_id)
        self.publication = publication
        self.external_id = publication.expected_id or request_id
        self.place = _place(self.external_id)
        self.deliveries = Deliveries(request_id, publication.expected_choices)
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of the prompt: inherited, or found in the prefix cache
        publication.attach(self)

    def wake(self) -> None:
        """Make a waiting ``get`` look at the gate."""
        self.ready.set()

    def get_nowait(self) -> RequestOutput | PoolingRequestOutput | None:
        """What waits, if the gate is open; a final output when stale; None while it must hold."""
        state = self.publication.gate()
        if state is GateState.STALE:
            return self._terminal()
        if state is GateState.OPEN or isinstance(self.output, Exception):
            return self._counted(super().get_nowait())
        return None

    async def get(self) -> RequestOutput | PoolingRequestOutput:
        """The next output; never None. Holds while the publish lease is expired."""
        while True:
            state = self.publication.gate()
            if state is GateState.STALE:
                return self._terminal()
            if self.output is None:
                await self.ready.wait()
                if self.output is None:
                    self.ready.clear()  # a wake-up, not an output
            elif state is GateState.OPEN or isinstance(self.output, Exception):
                output = self._counted(super().get_nowait())
                assert output is not None
                return output
            else:
                await self.publication.held()

    def _counted(self, output: Any) -> Any:
        if isinstance(output, RequestOutput):
            self.prompt_tokens = len(output.prompt_token_ids or ())
            self.cached_tokens = output.num_cached_tokens or 0
            for choice in output.outputs:
                self.deliveries.take(choice.index, len(choice.token_ids), delta=self.aggregate)
        return output

    def _terminal(self) -> RequestOutput:
        """One finished, empty output; what waited is dropped with whatever text it had."""
        self.output = None
        self.ready.clear()
        end = self.publication.ended
        reason = end.why.value if end is not None else Ended.SUPERSEDED.value
        return RequestOutput(
            request_id=self.external_id,
            prompt=None,
            prompt_token_ids=[],
            prompt_logprobs=None,
            outputs=[_aborted(index, reason) for index in range(self.deliveries.choices)],
            finished=True,
        )


def collector(output_kind: RequestOutputKind, request_id: str) -> RequestOutputCollector:
    """Stands for the class where AsyncLLM builds one: gated for a scope, vLLM's own otherwise."""
    publication = CURRENT.get()
    if publication is None or publication.tag is None:
        return RequestOutputCollector(output_kind, request_id)
    return GatedCollector(output_kind, request_id, publication)


def install() -> None:
    """Put :func:`collector` in the place of the class; a second call changes nothing."""
    async_llm.RequestOutputCollector = collector  # type: ignore[assignment, misc]


def installed() -> bool:
    """Whether the seam is in place in this process."""
    return async_llm.RequestOutputCollector is collector  # type: ignore[comparison-overlap]


def _place(external_id: str) -> int:
    """A completion call with several prompts names their requests ``…-0``, ``…-1``, …"""
    tail = external_id.rpartition("-")[2]
    return int(tail) if external_id.startswith("cmpl-") and tail.isdecimal() else 0


def _aborted(index: int, reason: str) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text="",
        token_ids=[],
        cumulative_logprob=None,
        logprobs=None,
        finish_reason="abort",
        stop_reason=reason,
    )
