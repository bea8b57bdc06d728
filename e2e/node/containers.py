"""The life of one container: start, probes, restarts with backoff, graceful end. asyncio.

Owns its state. ``Pod`` decides when it starts and ends. Must never talk to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx

from e2e.node.box import Box, BoxSpec, StartFailed
from e2e.node.environment import ConfigError
from e2e.node.images import UnknownImage
from e2e.node.probes import ProbeFailed, check, http_get
from e2e.node.states import ContainerView, Kind, Running, State, Terminated, Waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

Object = dict[str, Any]
_START_ERROR: Final = 128


@dataclass(frozen=True, slots=True)
class Delays:
    """How long things take, s. Shorter than the kubelet's where a test would wait for nothing."""

    backoff_first_s: float = 0.2
    backoff_max_s: float = 3.0
    settled_s: float = 10.0  # a container that ran this long starts the backoff anew
    config_retry_s: float = 0.3
    probe_patience: float = 5.0  # a probe's timeout is multiplied: the machine may be slow


class Surroundings(Protocol):
    """What a container needs of its pod."""

    address: str
    delays: Delays
    grace_s: float  # the pod's own grace period

    def plan(self, container: Object) -> BoxSpec:
        """What to run; ConfigError or UnknownImage."""
        ...

    def changed(self) -> None:
        """The container's state is another one."""
        ...

    def now(self) -> str:
        """As the API writes it."""
        ...


class Container:
    """``start`` once, ``stop`` once."""

    def __init__(self, spec: Object, kind: Kind, policy: str, pod: Surroundings) -> None:
        self.spec, self.kind = spec, kind
        self.name: str = spec["name"]
        self.box: Box | None = None
        self.task: asyncio.Task[int] | None = None
        self.started = asyncio.Event()
        self._policy, self._pod = policy, pod
        self._state: State = Waiting()
        self._last: Terminated | None = None
        self._restarts = 0
        self._ready = False
        self._stopping = False

    @property
    def view(self) -> ContainerView:
        """For the pod's status."""
        done = isinstance(self._state, Terminated) and self._state.exit_code == 0
        ready = self._ready or (self.kind is Kind.INIT and done)
        started = self.started.is_set()
        return ContainerView(
            self.name,
            self.spec["image"],
            self.kind,
            self._state,
            self._last,
            self._restarts,
            started,
            ready,
        )

    @property
    def ports(self) -> Mapping[str, int]:
        """Its named ports."""
        ports = self.spec.get("ports", [])
        return {port["name"]: port["containerPort"] for port in ports if "name" in port}

    def start(self) -> None:
        """Begin its life; ``task`` is done when it will not run again."""
        self.task = asyncio.get_running_loop().create_task(self._live(), name=self.name)

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period ends. It does not come back."""
        self._stopping = True
        if self.task is None:
            return
        if self.box is None:
            self.task.cancel()
        else:
            await self._end(self.box, grace_s)
        await asyncio.gather(self.task, return_exceptions=True)

    def waits(self, reason: str, message: str = "") -> None:
        """Why it does not run."""
        if self._state != Waiting(reason, message):
            self._become(Waiting(reason, message))

    # --- life -----------------------------------------------------------------------------------

    async def _live(self) -> int:
        delays, backoff_s = self._pod.delays, self._pod.delays.backoff_first_s
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            code = await self._once()
            if self._stopping or not self._again(code):
                return code
            if loop.time() - began > delays.settled_s:
                backoff_s = delays.backoff_first_s
            if isinstance(self._state, Terminated):
                self._last = self._state
            self.waits("CrashLoopBackOff", f"back-off {backoff_s:g}s restarting failed container")
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, delays.backoff_max_s)
            self._restarts += 1

    def _again(self, code: int) -> bool:
        """Whether the restart policy wants another run."""
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    async def _once(self) -> int:
        """One run: from creation to its end."""
        began = self._pod.now()
        try:
            self.box = await self._create()
        except StartFailed as error:
            self._become(Terminated(_START_ERROR, began, self._pod.now(), str(error)))
            return _START_ERROR
        watcher = asyncio.get_running_loop().create_task(self._watch(self.box))
        self._become(Running(began))
        code = -1
        try:
            code = await self.box.wait()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            self.box = None
            self._ready = False
            self.started.clear()
            self._become(Terminated(code, began, self._pod.now()))
        return code

    async def _create(self) -> Box:
        """Try until the pod's sources are there."""
        while True:
            try:
                return await Box.start(self._pod.plan(self.spec))
            except ConfigError as error:
                self.waits("CreateContainerConfigError", str(error))
            except UnknownImage as error:
                self.waits("ErrImagePull", str(error))
            except StartFailed:
                raise
            except Exception as error:  # a pod that this harness cannot read: say so, do not hang
                self.waits("HarnessError", f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._pod.delays.config_retry_s)

    def _become(self, state: State) -> None:
        self._state = state
        self._pod.changed()

    async def _end(self, box: Box, grace_s: float) -> None:
        """SIGTERM after the hook, SIGKILL when the grace period ends; returns when it is gone."""
        assert self.task is not None
        until = asyncio.get_running_loop().time() + grace_s
        if hook := self.spec.get("lifecycle", {}).get("preStop"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._hook(hook, box, grace_s)
        box.signal(signal.SIGTERM)
        while self.box is box:
            if asyncio.get_running_loop().time() >= until:
                box.signal(signal.SIGKILL)
            await asyncio.sleep(0.02)

    async def _hook(self, hook: Object, box: Box, limit_s: float) -> None:
        """A lifecycle hook; its failure ends nothing, as the kubelet has it for preStop."""
        if "exec" in hook:
            await box.execute(hook["exec"]["command"], limit_s)
        elif "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        else:
            with contextlib.suppress(httpx.HTTPError, ProbeFailed):
                await http_get(hook["httpGet"], self._pod.address, self.ports, limit_s)

    # --- probes ---------------------------------------------------------------------------------

    async def _watch(self, box: Box) -> None:
        """Start-up first, then readiness and liveness side by side."""
        if hook := self.spec.get("lifecycle", {}).get("postStart"):
            await self._hook(hook, box, 60.0)
        if probe := self.spec.get("startupProbe"):
            await self._probe(probe, box, self._set_started, self._kill_by(probe, box))
        self.started.set()
        if "readinessProbe" not in self.spec:
            self._set_ready(True)
        self._pod.changed()
        async with asyncio.TaskGroup() as group:
            if probe := self.spec.get("readinessProbe"):
                group.create_task(
                    self._probe_for_ever(probe, box, self._set_ready, self._not_ready)
                )
            if probe := self.spec.get("livenessProbe"):
                fail = self._kill_by(probe, box)
                group.create_task(self._probe_for_ever(probe, box, lambda _: None, fail))

    async def _probe_for_ever(
        self,
        probe: Object,
        box: Box,
        passed: Callable[[bool], None],
        failed: Callable[[str], Awaitable[None]],
    ) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        good = bad = 0
        while True:
            try:
                await self._check(probe, box)
            except ProbeFailed as error:
                good, bad = 0, bad + 1
                if bad == probe.get("failureThreshold", 3):
                    await failed(str(error))
            else:
                good, bad = good + 1, 0
                if good == probe.get("successThreshold", 1):
                    passed(True)
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _probe(
        self,
        probe: Object,
        box: Box,
        passed: Callable[[bool], None],
        failed: Callable[[str], Awaitable[None]],
    ) -> None:
        """Until it succeeds for the first time."""
        done = asyncio.Event()

        def note(_: bool) -> None:
            passed(True)
            done.set()

        task = asyncio.ensure_future(self._probe_for_ever(probe, box, note, failed))
        try:
            await done.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _check(self, probe: Object, box: Box) -> None:
        patience = self._pod.delays.probe_patience * probe.get("timeoutSeconds", 1)
        await check(
            {**probe, "timeoutSeconds": patience},
            address=self._pod.address,
            ports=self.ports,
            execute=box.execute,
        )

    def _set_started(self, _: bool) -> None:
        self.started.set()

    def _set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self._ready = ready
            self._pod.changed()

    async def _not_ready(self, _: str) -> None:
        self._set_ready(False)

    def _kill_by(self, probe: Object, box: Box) -> Callable[[str], Awaitable[None]]:
        """What a failed liveness or start-up probe does: the container is ended, then restarted."""

        async def kill(_: str) -> None:
            grace_s = probe.get("terminationGracePeriodSeconds", self._pod.grace_s)
            # Shielded: the end of the process cancels the probe that asked for it.
            await asyncio.shield(asyncio.ensure_future(self._end(box, grace_s)))

        return kill
