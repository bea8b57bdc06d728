"""``retire check`` on what real stacks recorded, and on the same with a fault planted in it.

Last of the folder's files that use ``forms`` in effect: whatever ran on that stack is judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from stack_forms import completion, superseded

from bench.stack_streams import Agent
from retire.protocol.history import (
    Acknowledged,
    Adopted,
    CertificateIssued,
    CommitMade,
    HistoryOpened,
    Published,
    ReceiptGiven,
    Submitted,
    record_to_dict,
)
from retire.telemetry.recorded import read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.stack import Stack
    from retire.protocol.history import Record

    Plant = Callable[[list[Record]], list[Record]]

PLAN = [71] * 96


@pytest.fixture
def recorded(forms: Stack) -> list[Record]:
    """The history of the stack, with one SUPERSEDE that inherits at its end."""
    agent = Agent.new(forms, "recorded")
    old = completion(PLAN).flow(agent).tokens_at_least(8)
    superseded(agent, [old], completion(PLAN, max_tokens=6))
    return list(read_all([forms.history]).records)


def check(path: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "retire.cli", "check", str(path), *options],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def last(records: list[Record], kind: type[Any], **fields: object) -> Any:
    """The newest record of a kind, whose fields are as given."""
    return next(
        r
        for r in reversed(records)
        if isinstance(r, kind) and all(getattr(r, k) == v for k, v in fields.items())
    )


def test_a_recorded_run_breaks_no_rule(forms: Stack, recorded: list[Record]) -> None:
    """It holds what the rules need: authority, stages, receipts, publications, blocks, digests."""
    status, said = check(forms.history)
    assert status == 0, said
    print(said)
    kinds = {type(r).__name__ for r in recorded}
    assert kinds >= {
        "HistoryOpened", "CommitMade", "Acknowledged", "VersionSeen", "WritersClosed", "PinTaken",
        "CertificateIssued", "Submitted", "Adopted", "ReceiptGiven", "Published", "Allocated",
        "Wrote", "PinReleased", "Freed",
    }  # fmt: skip
    opened = [r for r in recorded if isinstance(r, HistoryOpened)]
    assert len(opened) == 4 and len({r.host for r in opened}) == 1  # sidecar, two APIs, engine
    adopted = last(recorded, Adopted)
    issued = last(recorded, CertificateIssued, key=adopted.key, tokens=adopted.tokens)
    assert issued.digests == adopted.digests and len(set(issued.digests)) == len(issued.blocks) > 1
    for kind in (CommitMade, Submitted, Published):
        assert last(recorded, kind).generation is not None
    with forms.history.open() as lines:
        stages = {json.loads(line).get("stage") for line in lines}
    assert stages == {None, "advance", "fence", "align", "resume", "reclaim"}


def late(records: list[Record]) -> list[Record]:
    ack = last(records, Acknowledged)
    frame = last(records, Published, key=ack.key)
    old = replace(frame, version=replace(ack.version, epoch=ack.version.epoch - 1), generation=None)
    return [*records, replace(old, at_ns=records[-1].at_ns + 1)]


def corrupted(records: list[Record]) -> list[Record]:
    adopted = last(records, Adopted)
    assert adopted.digests
    wrong = replace(adopted, digests=("0" * 64, *adopted.digests[1:]))
    return [wrong if r is adopted else r for r in records]


def other_blocks(records: list[Record]) -> list[Record]:
    adopted = last(records, Adopted)
    return [replace(r, blocks=r.blocks[1:]) if r is adopted else r for r in records]


def understated(records: list[Record]) -> list[Record]:
    given = last(records, ReceiptGiven)
    less = tuple(replace(q, last_published_index=0) for q in given.receipt.requests)
    lying = replace(given, receipt=replace(given.receipt, requests=less))
    return [lying if r is given else r for r in records]


def overstated(records: list[Record]) -> list[Record]:
    given = last(records, ReceiptGiven)
    lying = replace(given, receipt=replace(given.receipt, certified_tokens=4096))
    return [lying if r is given else r for r in records]


def early(records: list[Record]) -> list[Record]:
    given = last(records, ReceiptGiven)
    ack = last(records, Acknowledged, key=given.key)
    return [r for r in records if r is not ack]


def foreign(records: list[Record]) -> list[Record]:
    work = last(records, Submitted)
    return [replace(r, generation=r.generation + 7) if r is work else r for r in records]


def twice(records: list[Record]) -> list[Record]:
    made = last(records, CommitMade)
    return [*records, replace(made, at_ns=records[-1].at_ns + 1)]


PLANTED: dict[str, Plant] = {
    "C1.published_after_acknowledge": late,
    "C3.page_changed": corrupted,
    "C2.certificate_differs": other_blocks,
    "C8.index_understated": understated,
    "C8.certified_differs": overstated,
    "C8.receipt_early": early,
    "C2.generation_differs": foreign,
    "commit.twice": twice,
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_fault_planted_in_it_is_found(tmp_path: Path, recorded: list[Record], rule: str) -> None:
    """NEGATIVE CONTROL: exit 1, the rule, the scope and what led there."""
    path = tmp_path / "history.ndjson"
    planted = PLANTED[rule](recorded)
    path.write_text("".join(json.dumps(record_to_dict(r)) + "\n" for r in planted))
    status, said = check(path, "--all")
    assert status == 1
    found = [line.partition(":")[0] for line in said.splitlines() if line.startswith("C") or
             line.startswith("commit.")]  # fmt: skip
    assert rule in found, said[:2000]
    assert "<- breaks it" in said and f"[{path}:" in said and "/recorded-" in said
