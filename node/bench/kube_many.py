"""Many ServingScopes: an operator that starts again, and all of them revised in one go.

A scope counts as reconciled when the operator has asked every node about it, which is the last
thing that it does before it compares the status; the gates hear that question. Must never take the
operator's word for it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.kube_gates import switched_s, until
from bench.kube_world import cpu_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.kube_world import World

LIMIT_S: Final = 600.0
REST_S: Final = 2.0
AFTER_S: Final = 3.0  # a late write still counts


@dataclass(frozen=True, slots=True)
class Restart:
    """An operator that finds every object as it should be."""

    first_s: float  # from its start to the first scope
    all_s: float  # to the last one
    cpu_s: float
    writes: int  # requests for ServingScopes; nothing changed, so none is due
    changed: int  # objects whose resourceVersion moved all the same


async def restarted(world: World, scopes: Sequence[str]) -> Restart:
    """Stop every operator and start one, once nothing is written any more."""
    await _at_rest(world)
    await world.stop_operators()
    before, writes = await _resource_versions(world, scopes), world.writes()
    for gate in world.gates:
        gate.inspected.clear()
    began_s = time.perf_counter()
    operator = world.operator()
    await until("the first reconcile", lambda: any(g.inspected for g in world.gates), LIMIT_S)
    first_s = time.perf_counter()
    wanted = set(scopes)
    await until(
        "every reconcile",
        lambda: all(wanted <= gate.inspected.keys() for gate in world.gates),
        LIMIT_S,
    )
    all_s = time.perf_counter()
    await asyncio.sleep(AFTER_S)
    after = await _resource_versions(world, scopes)
    return Restart(
        first_s=first_s - began_s,
        all_s=all_s - began_s,
        cpu_s=cpu_s(operator.pid),
        writes=world.writes() - writes,
        changed=sum(before[scope] != after[scope] for scope in scopes),
    )


async def revised_at_once(world: World, scopes: Sequence[str]) -> tuple[float, float]:
    """One revision of each in one go: seconds until all are UNPUBLISHABLE, and until all objects
    say so."""
    epochs = {scope: world.next_epoch(scope) for scope in scopes}
    began_s = time.perf_counter()
    await world.in_threads(lambda scope: world.apply(scope, epoch=epochs[scope]), scopes)
    await until(
        "UNPUBLISHABLE of every scope",
        lambda: all(switched_s(world.gates, s, epochs[s]) is not None for s in scopes),
        LIMIT_S,
    )
    reached_s = max(switched_s(world.gates, s, epochs[s]) or 0.0 for s in scopes)
    await world.until_settled(scopes)
    return reached_s - began_s, time.perf_counter() - began_s


async def _at_rest(world: World) -> None:
    """Until the API server has seen no write for REST_S."""
    end_s = time.monotonic() + LIMIT_S
    seen, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < REST_S:
        if (now := await asyncio.to_thread(world.writes)) != seen:
            seen, since_s = now, time.monotonic()
        if time.monotonic() > end_s:
            raise TimeoutError(f"writes go on without a revision: {seen}")
        await asyncio.sleep(0.2)


async def _resource_versions(world: World, scopes: Sequence[str]) -> dict[str, str]:
    bodies = await world.objects(scopes)
    return {scope: bodies[scope]["metadata"]["resourceVersion"] for scope in scopes}
