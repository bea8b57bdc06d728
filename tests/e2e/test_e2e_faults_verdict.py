"""The whole history of the installation keeps the promises; a planted break of one is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from e2e_faults_scene import Scene, retired

from retire.protocol import invariants
from retire.protocol.history import Acknowledged, CommitMade, Published, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.deployment import Deployment


def late_token(records: list[Record]) -> list[Record]:
    """A frame of the old version after the acknowledgement of a higher one."""
    acknowledged = [one for one in records if isinstance(one, Acknowledged)]
    ends = {(one.key, one.version): one for one in acknowledged}
    frame = next(
        one
        for one in reversed(records)
        if isinstance(one, Published) and (one.key, one.version.next_epoch()) in ends
    )
    end = ends[frame.key, frame.version.next_epoch()]
    at = records.index(end) + 1
    return [*records[:at], replace(frame, at_ns=end.at_ns + 1), *records[at:]]


def second_truth(records: list[Record]) -> list[Record]:
    """Another COMMIT of the same epoch."""
    made = next(one for one in reversed(records) if isinstance(one, CommitMade))
    at = records.index(made) + 1
    again = replace(made, at_ns=made.at_ns + 1, idempotency_key="another")
    return [*records[:at], again, *records[at:]]


@pytest.mark.parametrize(
    ("plant", "rule"),
    [(late_token, "C1.published_after_acknowledge"), (second_truth, "C5.commit_fell")],
)
def test_every_record_is_judged(
    deployment: Deployment,
    tenant: str,
    plant: Callable[[list[Record]], list[Record]],
    rule: str,
) -> None:
    """Everything that every scenario left behind passes; a copy with one violation does not."""
    scene = Scene(deployment, tenant)
    scope = scene.scope()
    flow = scope.stream()
    scope.revise()
    scope.current()
    retired(flow, scope)
    scene.end()
    records = deployment.history.records()
    print(f"{len(records)} records")
    assert invariants.check(records) == []
    assert {one.name for one in invariants.check(plant(records))} == {rule}
