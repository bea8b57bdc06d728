"""Seam: the scheduler. FENCE at the step boundary, RESUME in the predecessor's place, RECLAIM.

Subclasses ``vllm.v1.core.sched.scheduler.Scheduler`` and ``AsyncScheduler``: every override stands
around ``super()``. Upstream status: "not a public interface". Tested on 0.26.0.

Three facts of vLLM decide this file (each has its test):
- ``num_computed_tokens`` advances when a step is *scheduled*; less what is in flight, it is written
- block hashes are registered when blocks are allocated; what was not written must lose its hash.
- a block may be given away only after the last step that could write it (``defer_block_free``).
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import RequestStatus

from retire.engine.certification import Certifier
from retire.engine.chronicle import Chronicle
from retire.engine.held import Held
from retire.engine.inheritance import Inheritance
from retire.engine.records import Ending
from retire.engine.seams import identity, versions
from retire.engine.seams.core import request_state
from retire.engine.seams.kv_cache import KvCache
from retire.engine.seams.runner import may_abandon
from retire.engine.seams.step_fence import StepFence
from retire.engine.step_control import StepControl, bound_from_env, fence_of
from retire.engine.step_plan import ENDED, STEP_MS
from retire.engine.tag import Tag
from retire.mailbox import GateState, MailboxView, SlotFlags
from retire.telemetry.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from retire.engine.step_plan import Ended
    from retire.protocol.contract import Fence


QUANTUM_ENV = "RETIRE_QUANTUM_TOKENS"


@dataclass(frozen=True, slots=True)
class Aside:
    """Paused requests while a step is scheduled without them."""

    running: list[Request]
    waiting: tuple[list[Request], ...]  # of `waiting` and of the side queue


class RetireSchedulerMixin(StepFence):
    """Versioned scheduling around a stock scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.defer_block_free = True  # RECLAIM after the last writer, whatever runs ahead
        self.side_queue = versions.side_queue(self)  # waiting, but not in `waiting`
        versions.keep_windows(self)
        self.mailbox = MailboxView.attach()
        self.kv = KvCache(self.kv_cache_manager, boundary=self.block_size)
        who = identity.of(self.vllm_config, self.kv_cache_config)
        self.history = History.from_env()
        self.chronicle = Chronicle(who.boot_id, self.history.write if self.history.on else None)
        self.inheritance = Inheritance(self.kv, Certifier(who), self.chronicle)
        self.kv.adopt_through(self.inheritance.adoption_of)
        self.inheritance.settled = self._take_place  # a successor that waited for its copy
        self.tags: dict[str, Tag] = {}  # live scoped requests by internal id
        self.paused: set[str] = set()  # ids set aside: they keep blocks and authority
        self.quantum = _quantum(self.vllm_config)
        self._ended: list[Request] = []  # retired here: the front end is told in the next output
        self._step: SchedulerOutput | None = None  # being processed: written, not counted yet
        self._swept: int | None = None  # mailbox changes at the last sweep; None: sweep
        self.steps = StepControl(
            may_abandon(self.vllm_config),
            self.vllm_config.scheduler_config.async_scheduling,
            bound_from_env(),
            launched=self.participants.launched,
        )
        self._writes: dict[
            int, dict[str, set[int]]
        ] = {}  # step -> scoped request -> blocks it writes
        self._awaiting: list[tuple[int, Callable[[], None]]] = []  # replies that wait for a step
        self._held = Held()  # until an armed step has ended
        self._abandoned: set[int] = set()  # blocks that the step being processed did not write
        self._brings: Container[str] = ()  # requests that it may bring a token
        self._awaited = False  # a stale request's armed step is in flight
        self._fence: Fence | None = None  # how that step ended for what was superseded in it
        self._ended_step: Ended | None = None  # and what its worker decided

    # --- ADVANCE and FENCE -------------------------------------------------------------------

    def retire_stale(self) -> None:
        """Finish every request whose version was superseded; its blocks go to its successor."""
        changes = self.mailbox.changes()
        if changes == self._swept:
            return
        stale = [
            request_id
            for request_id, tag in self.tags.items()
            if not self.mailbox.check(tag.slot.index, tag.slot.stamp)
            and self.mailbox.gate(tag.slot) is GateState.STALE
        ]
        due = [request_id for request_id in stale if not self._awaits_result(request_id)]
        self._awaited = len(due) < len(stale)
        if not self._awaited:
            self._swept = changes
        if due:
            self._ended += super().finish_requests(due, RequestStatus.FINISHED_ABORTED)

    def _record_closed(self, tag: Tag) -> None:
        """Between steps, or with the step just done, nothing of a stale version can write.

        Unless another request of the scope is in a step that is awaited.
        """
        if not self.chronicle.on or any(
            other.key == tag.key and self._awaits_result(request_id)
            for request_id, other in self.tags.items()
        ):
            return
        if self._step is not None or self._nothing_in_flight():
            current = self.mailbox.current(tag.slot.index, tag.slot.tenure)
            if current is not None:
                self.chronicle.closed(tag.key, current.version)

    def _nothing_in_flight(self) -> bool:
        return self.sched_step_seq == self.processed_step_seq

    def when_written(self, steps: Iterable[int], then: Callable[[], None]) -> None:
        """Call ``then`` once no launched step up to the last of ``steps`` can still write."""
        last = max(steps, default=0)
        if last <= self.processed_step_seq:
            then()
        else:
            self._awaiting.append((last, then))

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call ``then`` once no armed step in flight decides what it would find."""
        if self._unsettled():
            self._held.hold(then)
        else:
            then()

    def _unsettled(self) -> bool:
        """Whether an armed step may still be abandoned, or decides how far stale work comes."""
        self.retire_stale()
        return self._awaited or self.steps.holding

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests; also those that were not added yet."""
        named = (request_ids,) if isinstance(request_ids, str) else request_ids
        named = None if named is None else set(named)
        self._held.withdraw(named)
        return super().finish_requests(named, finished_status)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        tag = self.tags.pop(request.request_id, None)
        self.paused.discard(request.request_id)
        if tag is not None:
            end = self._ending(request, tag)
            if end.superseded:
                self._record_closed(tag)
            else:
                self.chronicle.finished(tag, request.request_id)
            self.inheritance.ended(request, tag, end)
        return super()._free_request(request, delay_free_blocks)

    def _ending(self, request: Request, tag: Tag) -> Ending:
        stale = self.mailbox.gate(tag.slot) is GateState.STALE
        return Ending(
            state=request_state(request) if stale else "finished",
            frontier=self._frontier(request),
            superseded=stale,
            residual_ms=self._residual_ms(request, tag) if stale else None,
            fence=self._fence if stale else None,
        )

    def _free_request_blocks(self, request: Request) -> None:
        super()._free_request_blocks(request)
        if self.chronicle.on:
            last, request_id = request.last_sched_seq, request.request_id
            self.when_written([last], lambda: self.chronicle.freed(request_id))

    # --- admission: RESUME -------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Admit a request; one of a scope inherits first, then takes its predecessor's place."""
        tag = Tag.of(request.sampling_params)
        if tag is not None and self._unsettled():
            self._held.hold(lambda: self.add_request(request), request.request_id)
            return
        if tag is not None and request.request_id not in self.requests:
            self.retire_stale()  # the predecessor's record comes before its successor's ALIGN
            if self._nothing_in_flight():
                self.chronicle.closed(tag.key, tag.version)
            self.chronicle.submitted(tag, request.request_id)
            self.tags[request.request_id] = tag
            self._swept = None  # the new tag has not been looked at
            self.inheritance.align(request, tag)
        super().add_request(request)
        if tag is not None:
            self._take_place(request)
            current = self.mailbox.current(tag.slot.index, tag.slot.tenure)
            if current is not None and current.flags & SlotFlags.PAUSED:
                self.paused.add(request.request_id)

    def _take_place(self, request: Request) -> None:
        """Slot inheritance: stand where the predecessor stood, not at the back of the line."""
        arrival = self.inheritance.predecessor_arrival(request.request_id)
        if arrival is None or arrival >= request.arrival_time:
            return
        queue = self.waiting if request in self.waiting else self.side_queue
        queue.remove_request(request)
        request.arrival_time = arrival
        if isinstance(queue, deque):
            later = (i for i, other in enumerate(queue) if other.arrival_time > arrival)
            queue.insert(next(later, len(queue)), request)
        else:  # a priority heap orders by (priority, arrival_time) itself
            queue.add_request(request)

    # --- one step ----------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """FENCE by quantum: retire what is stale, then plan a step of short chunks."""
        if not self.tags and not self.inheritance.active:
            return super().schedule(*args, **kwargs)
        self.retire_stale()
        self.tend_leases()
        aside = self._set_aside()
        pause = self._pause_state
        if self._must_wait():
            self._pause_state = PauseState.PAUSED_ALL  # nothing is built on what may be abandoned
        quantum = versions.short_chunks(self, self.quantum) if self.tags else nullcontext()
        try:
            with quantum:
                output = super().schedule(*args, **kwargs)
        finally:
            self._pause_state = pause
            self._put_back(aside)
        self._after_schedule(output)
        return output

    def _after_schedule(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            if new.req_id in self.tags:
                self.inheritance.adopted(new.req_id, self.tags[new.req_id])
        self._plan_step(output)
        if (
            self._nothing_in_flight()
            and output.total_num_scheduled_tokens == 0
            and self._lacks_room()
        ):
            self._make_room()

    def tend_leases(self) -> None:
        """End leases whose time is over, and look after transfers to and from host memory."""
        self.inheritance.expire(time.monotonic())
        self.inheritance.tier.poll(idle=self._nothing_in_flight())

    def _set_aside(self) -> Aside | None:
        """Take requests that may not run out of the queues for one step; they keep their blocks."""
        apart = self.paused | self.inheritance.waiting.keys()
        if not apart:
            return None
        queues = (self.waiting, self.side_queue)
        aside = Aside(
            [r for r in self.running if r.request_id in apart],
            tuple([r for r in queue if r.request_id in apart] for queue in queues),
        )
        self.running = [r for r in self.running if r.request_id not in apart]
        versions.take_seats(self, len(aside.running))
        for queue, requests in zip(queues, aside.waiting, strict=True):
            queue.remove_requests(requests)
        return aside

    def _put_back(self, aside: Aside | None) -> None:
        if aside is None:
            return
        self.running = aside.running + self.running
        versions.take_seats(self, -len(aside.running))
        queues = (self.waiting, self.side_queue)
        for queue, requests in zip(queues, aside.waiting, strict=True):
            for request in reversed(requests):
                queue.prepend_request(request)

    def _lacks_room(self) -> bool:
        waiting = self.inheritance.waiting.keys() - self.paused
        return self._num_runnable() > len(waiting) or self.inheritance.tier.restores.lacking_room

    def _make_room(self) -> None:
        """Nothing runs and nothing fits: pins of the unclaimed give way, then the paused."""
        if self.inheritance.yield_oldest():
            return
        if self.running and self.running[-1].request_id in self.paused:
            self._preempt_request(self.running.pop(), time.monotonic())

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take a step's result for those that still have authority."""
        writes = self._writes.pop(id(scheduler_output), {})
        plan = self.steps.done(id(scheduler_output), getattr(model_runner_output, STEP_MS, None))
        self._ended_step = getattr(model_runner_output, ENDED, None)
        self._fence = fence_of(plan, self._ended_step)
        silent = plan is not None and plan.silent
        self._brings = () if silent else scheduler_output.num_scheduled_tokens
        if self.tags or writes:
            self._fence_step(scheduler_output, model_runner_output, writes)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._brings = ()
        self._settle_awaiting()
        if self._held and not self._unsettled():
            self._held.release()
        return self._tell_ended(outputs)

    def _settle_awaiting(self) -> None:
        due = [entry for entry in self._awaiting if entry[0] <= self.processed_step_seq]
        if due:
            self._awaiting = [entry for entry in self._awaiting if entry not in due]
            for _, then in due:
                then()

    # --- what stock code asks ----------------------------------------------------------------

    def _num_runnable(self) -> int:
        """Requests that a step could serve: paused ones are no work."""
        return max(0, super().get_num_unfinished_requests() - len(self.paused))

    def get_num_unfinished_requests(self) -> int:
        """An engine that holds only paused requests may sleep; one that owes an ending may not."""
        return self._num_runnable() + len(self._ended)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Whatever is reset is no longer certified: pins and records go first."""
        self.inheritance.forget_all()
        return super().reset_prefix_cache(*args, **kwargs)


class RetireScheduler(RetireSchedulerMixin, Scheduler):
    """For engines that schedule one step at a time."""


class RetireAsyncScheduler(RetireSchedulerMixin, AsyncScheduler):
    """For engines that schedule ahead of the device."""


def _quantum(vllm_config: Any) -> int:
    """Tokens a prefill of a revisable scope may compute in one step."""
    text = os.environ.get(QUANTUM_ENV)
    if text is None:
        return 256 if vllm_config.device_config.device_type == "cpu" else 2048
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{QUANTUM_ENV} must be a number of tokens, at least 1; got {text!r}")
    return int(text)


def install() -> None:
    """Make vLLM pick the versioned scheduler where it would pick a stock one."""
    from vllm.config.scheduler import SchedulerConfig

    stock = SchedulerConfig.get_scheduler_cls
    if getattr(stock, "retire", False):
        return
    versioned = {Scheduler: RetireScheduler, AsyncScheduler: RetireAsyncScheduler}

    def get_scheduler_cls(self: SchedulerConfig) -> type[Any]:
        chosen = versioned.get(cls := stock(self), cls)
        right = RetireAsyncScheduler if self.async_scheduling else RetireScheduler
        if not issubclass(chosen, RetireSchedulerMixin):
            raise TypeError(
                f"scheduler_cls {cls.__qualname__} is not versioned: with Retire, leave it unset "
                f"or subclass {__name__}.{right.__name__}"
            )
        if issubclass(chosen, AsyncScheduler) is not bool(self.async_scheduling):
            raise TypeError(
                f"scheduler_cls {cls.__qualname__} does not fit async_scheduling="
                f"{self.async_scheduling}: leave it unset or subclass {__name__}.{right.__name__}"
            )
        return chosen

    get_scheduler_cls.retire = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls  # type: ignore[method-assign]
