"""The latencies of ``bench.kube``: a revision through Kubernetes, and what it is compared with.

One round asks for each kind once, so that every series sees the same machine. Between two rounds
nothing of a revision runs any more. Times are milliseconds on one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import httpx

from bench import control
from bench.kube_gates import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.kube_world import World

API_SCOPE: Final = "by-api"
KUBECTL_SCOPE: Final = "by-kubectl"
BARE_SCOPE: Final = "bare"
RUNTIME_SCOPE: Final = "by-runtime"
SILENCE_S: Final = 3.0  # how long the negative control waits for what must not come
WARM_UP: Final = 3
_WATCHED_S: Final = 60.0
Samples = dict[str, list[float]]


class BareWatch:
    """Objects that no operator watches, and a thread that does: the API server alone."""

    def __init__(self, world: World, namespace: str) -> None:
        self._api = world.cluster.api
        self._path = f"/apis/serving.retire.dev/v1alpha1/namespaces/{namespace}/servingscopes"
        self._seen: dict[int, float] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True, name="bare watch")
        self._apply(0)
        self._thread.start()

    async def revise(self, epoch: int) -> tuple[float, float]:
        """Milliseconds until the PATCH is answered, and until a watcher has its event."""
        began_s = time.perf_counter()
        await asyncio.to_thread(self._apply, epoch)
        answered_s = time.perf_counter()
        await until("the event of a bare PATCH", lambda: epoch in self._seen, _WATCHED_S)
        return (answered_s - began_s) * 1e3, (self._seen[epoch] - began_s) * 1e3

    def _apply(self, epoch: int) -> None:
        body = {
            "apiVersion": "serving.retire.dev/v1alpha1",
            "kind": "ServingScope",
            "metadata": {"name": BARE_SCOPE},
            "spec": {"epoch": epoch},
        }
        self._api.apply(f"{self._path}/{BARE_SCOPE}", body, "author")

    def _follow(self) -> None:
        with contextlib.suppress(httpx.TransportError):  # the cluster ends with the run
            for event in self._api.watch(self._path, timeoutSeconds=3600):
                at_s = time.perf_counter()
                self._seen.setdefault(event["object"]["spec"]["epoch"], at_s)


async def rounds(
    world: World, count: int, bare: BareWatch, *, advance: Callable[[], object]
) -> Samples:
    """``count`` rounds after a warm-up."""
    samples: Samples = defaultdict(list)
    for number in range(count + WARM_UP):
        took = await _one_round(world, bare, number + 1)
        if number >= WARM_UP:
            for name, milliseconds in took.items():
                samples[name].append(milliseconds)
            advance()
    return dict(samples)


async def _one_round(world: World, bare: BareWatch, number: int) -> dict[str, float]:
    patched, watched = await bare.revise(number)
    asked, answered, api = await by_api(world, API_SCOPE)
    took = {
        "patch_ms": patched,
        "watch_ms": watched,
        "apply_ms": (api - asked) * 1e3,
        "apply_answered_ms": (answered - asked) * 1e3,
    }
    started, ended, reached = await _by_kubectl(world)
    version_started, version_ended = await world.kubectl("version", "--client")
    return took | {
        "kubectl_to_unpublishable_ms": (reached - started) * 1e3,
        "kubectl_apply_ms": (ended - started) * 1e3,
        "kubectl_start_ms": (version_ended - version_started) * 1e3,
    }


async def by_api(world: World, scope: str) -> tuple[float, float, float]:
    """One revision by a running client: when it was sent, answered, and UNPUBLISHABLE."""
    epoch = world.next_epoch(scope)
    sent_s = await asyncio.to_thread(world.apply, scope, epoch=epoch)
    answered_s = time.perf_counter()
    reached_s = await world.until_switched(scope, epoch)
    await world.until_settled([scope])
    return sent_s, answered_s, reached_s


async def _by_kubectl(world: World) -> tuple[float, float, float]:
    epoch = world.next_epoch(KUBECTL_SCOPE)
    started_s, ended_s = await world.kubectl_apply(KUBECTL_SCOPE, epoch=epoch)
    reached_s = await world.until_switched(KUBECTL_SCOPE, epoch)
    await world.until_settled([KUBECTL_SCOPE])
    return started_s, ended_s, reached_s


async def two_operators(world: World, count: int, *, advance: Callable[[], object]) -> list[float]:
    """The same revisions while a second operator acts beside the first."""
    samples: list[float] = []
    for number in range(count + WARM_UP):
        sent_s, _, reached_s = await by_api(world, API_SCOPE)
        if number >= WARM_UP:
            samples.append((reached_s - sent_s) * 1e3)
            advance()
    return samples


async def runtime(world: World, calls: int) -> tuple[list[float], list[float]]:
    """SUPERSEDE by gRPC on node-0's socket over both nodes, no object; and the bare
    compare-and-set in the same registry."""
    key = world.key(RUNTIME_SCOPE)
    for gate in world.gates:
        await gate.take([key])
    client = world.gates[0].client
    ours = await control.unpublishable_ms(client, key, calls)
    world.epochs[RUNTIME_SCOPE] = calls + control.WARM_UP
    return ours, await control.compare_and_set_ms(world.lab.registry, calls)


async def without_operator(world: World) -> int:
    """Negative control: no operator runs, a revision is applied, and nothing may follow from it.
    Returns the gates that switched or closed. The caller starts an operator again."""
    await world.stop_operators()
    for gate in world.gates:
        await gate.take([world.key(API_SCOPE)])
    epoch = world.next_epoch(API_SCOPE)
    await asyncio.to_thread(world.apply, API_SCOPE, epoch=epoch)
    await asyncio.sleep(SILENCE_S)
    return sum(
        not gate.publishable(API_SCOPE) or any(s.epoch == epoch for s in gate.seen[API_SCOPE])
        for gate in world.gates
    )
