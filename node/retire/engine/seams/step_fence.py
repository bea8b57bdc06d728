"""Seam: the scheduler's side of a step that is fenced: planned, taken for those with authority, or
rolled back.

Part of the scheduler mixin (``scheduler.py``), whose attributes it uses. Upstream status: "not a
public interface". Tested on 0.26.0.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from retire.engine.participants import Participants, Rank
from retire.engine.seams import versions
from retire.engine.step_plan import ABANDONED, PLAN
from retire.mailbox import ProgressLines

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from retire.engine.tag import Tag


class StepFence:
    """What a scheduler does with a plan, and with the result of a planned step."""

    @cached_property
    def participants(self) -> Participants:
        """The ranks whose writers a fence closes."""
        parallel = self.vllm_config.parallel_config
        return Participants(
            parallel.pipeline_parallel_size,
            parallel.tensor_parallel_size,
            ProgressLines.attach() if parallel.data_parallel_size == 1 else None,
        )

    def ranks(self) -> list[Rank]:
        """Every participant, and whether it has ended the steps whose results are in."""
        return self.participants.ended(self.steps.ended)

    def _residual_ms(self, request: Request, tag: Tag) -> float | None:
        """From ADVANCE to the end of the old request's last step; None: none was running."""
        if self._step is None or request.request_id not in self._step.num_scheduled_tokens:
            return None
        advanced_ns = self.mailbox.changed_ns(tag.slot.index)
        left_ms = self._ended_step.left_ms if self._ended_step is not None else 0.0
        return max(0.0, (time.monotonic_ns() - advanced_ns) / 1e6) + left_ms

    def _frontier(self, request: Request) -> int:
        """Tokens whose KV is written for certain; un-hashes the blocks past it."""
        written = request.num_computed_tokens - request.num_in_flight_tokens
        if self._step is not None:
            drafts = self._step.scheduled_spec_decode_tokens.get(request.request_id, ())
            written += self._step.num_scheduled_tokens.get(request.request_id, 0) - len(drafts)
        written = max(0, min(written, request.num_tokens))
        if self._abandoned:
            written = min(written, self.kv.first_of(request.request_id, self._abandoned))
        self.kv.unhash(self.kv.written_by(request.request_id, written))
        return written

    def _plan_step(self, output: SchedulerOutput) -> None:
        work = {
            request_id: (self.requests[request_id].num_computed_tokens - tokens, tokens)
            for request_id, tokens in output.num_scheduled_tokens.items()
        }
        plan = self.steps.plan(
            id(output),
            work,
            self.tags,
            silent=all(self.requests[request_id].is_prefill_chunk for request_id in work),
            whole=lambda: any(map(self._reads_its_prompt, work)),
        )
        if plan is None:
            return
        setattr(output, PLAN, plan)
        if plan.may_stop or self.chronicle.on:
            self._record_writes(output, work, everybody=plan.may_stop)

    def _reads_its_prompt(self, request_id: str) -> bool:
        """Prompt log probabilities are gathered step by step: none of these may be run again."""
        params = self.requests[request_id].sampling_params
        return params is not None and params.prompt_logprobs is not None

    def _record_writes(
        self, output: SchedulerOutput, work: dict[str, tuple[int, int]], *, everybody: bool
    ) -> None:
        """By the step, not by the request: an abort may free a request while its step runs.

        ``everybody``: the step may be abandoned although some of its work has no scope.
        """
        self._writes[id(output)] = writes = {
            request_id: self.kv.written_by(request_id, start)
            for request_id, (start, _) in work.items()
            if everybody or request_id in self.tags
        }
        for request_id, blocks in writes.items() if self.chronicle.on else ():
            if request_id in self.tags:
                self.chronicle.scheduled(self.tags[request_id], request_id, blocks)

    def _fence_step(
        self, step: SchedulerOutput, result: ModelRunnerOutput, writes: dict[str, set[int]]
    ) -> None:
        """Gate G1: nothing of a stale request is appended, counted or emitted."""
        self._step = step
        if getattr(result, ABANDONED, False):
            self._abandoned = set().union(*writes.values())
            self.kv.unhash(self._abandoned)
            self._roll_back(step)
        else:
            for request_id, blocks in writes.items() if self.chronicle.on else ():
                if request_id in self.tags:
                    self.chronicle.wrote(self.tags[request_id], blocks)
        try:
            self.retire_stale()
        finally:
            self._step, self._abandoned = None, set()

    def _must_wait(self) -> bool:
        """Whether nothing may be scheduled now.

        Workers of their own are still launching the step when the next one could be scheduled: that
        is waited for, as its result would be otherwise.
        """
        if (serial := self.steps.launching) is not None:
            self.participants.ended(serial)
            self.retire_stale()
        return self._awaited or self.steps.holding

    def _awaits_result(self, request_id: str) -> bool:
        """Whether an armed step's result, still to come, tells how far a request has come.

        Retired before, it would lose what that step is about to finish. Not where the step whose
        result is being processed brings a token of it: that must be gated now.
        """
        return request_id not in self._brings and self.steps.awaited(request_id)

    def _roll_back(self, step: SchedulerOutput) -> None:
        """Count an abandoned step's tokens as not computed, for requests that live on.

        Drafts are not tried again: the next token that a request samples proposes its own.
        """
        for request_id, tokens in step.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None or request.is_finished():
                continue
            if request.status == RequestStatus.PREEMPTED:  # the cache was reset meanwhile
                versions.forget_stale_frames(request)
                continue
            if isinstance(self, AsyncScheduler) and not request.is_prefill_chunk:
                drafts = step.scheduled_spec_decode_tokens.get(request_id, ())
                request.num_output_placeholders -= self.num_sampled_tokens_per_step + len(drafts)
            request.num_computed_tokens -= tokens
            request.spec_token_ids = []
            request.is_prefill_chunk = True
            self.kv.forget_cached_from(request_id, request.num_computed_tokens)

    def _tell_ended(self, outputs: dict[int, EngineCoreOutputs]) -> dict[int, EngineCoreOutputs]:
        """End retired requests in the front end too; without this it waits for them for ever."""
        for request in self._ended:
            client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            client.outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=FinishReason.ABORT,
                    stop_reason="superseded",
                )
            )
        self._ended.clear()
        return outputs
