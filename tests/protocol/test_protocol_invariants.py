"""Each rule of ``invariants`` against a history that keeps it and one that breaks it."""

from __future__ import annotations

import json

import pytest

from retire.protocol.contract import Receipt, RetiredRequest
from retire.protocol.errors import InvalidField
from retire.protocol.events import Change
from retire.protocol.history import (
    Acknowledged,
    Adopted,
    Allocated,
    CertificateIssued,
    CommitMade,
    Delivered,
    Finished,
    Freed,
    HistoryOpened,
    Idle,
    NodeRestarted,
    PinReleased,
    PinTaken,
    Published,
    ReceiptGiven,
    Record,
    RegistryRebuilt,
    Submitted,
    VersionSeen,
    WritersClosed,
    Wrote,
    in_order,
    record_from_dict,
    record_to_dict,
)
from retire.protocol.invariants import RULES, Facts, check
from retire.protocol.traces import explain, trace_of
from retire.protocol.versions import ScopeKey, Version

K, OTHER = ScopeKey("acme", "plan"), ScopeKey("rival", "plan")
V0, V1, V2 = (Version(1, e) for e in range(3))


def commit(
    a: Version, b: Version, key: str, change: Change = Change.SUPERSEDE, generation: int | None = 3
) -> CommitMade:
    return CommitMade(0, K, change, a, b, key, generation)


def receipt(published: int | None = 0, certified: int = 32) -> ReceiptGiven:
    old = RetiredRequest("r", "decode", 32, 32, published)
    return ReceiptGiven(0, "n", Receipt(K, V0, V1, {}, requests=(old,), certified_tokens=certified))


def publish(version: Version) -> Published:
    return Published(0, K, version, "r", "n/api", 0)


def deliver(version: Version) -> Delivered:
    return Delivered(0, K, version, "r", "me", 0)


def certificate(**changes) -> CertificateIssued:
    values = {"generation": 3, "tokens": 32, "blocks": (1, 2), "expires_ns": 100}
    return CertificateIssued(0, "n", K, V1, **(values | changes))


def adopt(at: int = 0, version: Version = V1, **changes) -> Adopted:
    values = {"generation": 3, "tokens": 32, "blocks": (1, 2)}
    return Adopted(at, "n", K, version, "r2", **(values | changes))


OLD = (
    Submitted(0, K, V0, "r"),
    Allocated(0, "n", K, V0, (1, 2, 3)),
    Wrote(0, "n", K, V0, (1, 2, 3)),
)
CLOSED = WritersClosed(0, "n", K, V1)
PIN = PinTaken(0, "n", K, V0, (1, 2), 10)
UNPIN = PinReleased(0, "n", K, V0, (1, 2))
FREE = Freed(0, "n", K, V0, (1, 2, 3))
NEW = Allocated(0, "n", K, V1, (4,))
ACK = Acknowledged(0, K, V1)
GOOD: tuple[Record, ...] = (
    HistoryOpened(0, 1_000, "host", "sidecar[1]"),
    *OLD,
    publish(V0),
    deliver(V0),
    commit(V0, V1, "k1"),
    VersionSeen(0, "n", K, V1),
    CLOSED,
    PIN,
    ACK,
    certificate(digests=("aa", "bb")),
    Submitted(0, K, V1, "r2", 3),
    adopt(digests=("aa", "bb")),
    receipt(),
    NEW,
    UNPIN,
    FREE,
    Wrote(0, "n", K, V1, (4,)),
    Published(0, K, V1, "r2", "n/api", 0, 3),
    deliver(V1),
    Finished(0, K, V1, "r2"),
    Freed(0, "n", K, V1, (1, 2, 4)),
    Idle(0, "n"),
)

BAD: list[tuple[str, list[Record]]] = [
    ("C1.published_after_acknowledge", [Acknowledged(0, K, V1), publish(V0)]),
    ("C1.old_after_new", [deliver(V1), deliver(V0)]),
    ("C1.cancelled", [commit(V0, V1, "k", Change.CANCEL), Submitted(0, K, V1, "r")]),
    ("C2.no_certificate", [*OLD, CLOSED, adopt()]),
    ("C2.no_certificate", [*OLD, WritersClosed(0, "n", K, V2), certificate(), adopt(version=V2)]),
    ("C2.certificate_differs", [*OLD, CLOSED, certificate(), adopt(generation=4)]),
    ("C2.certificate_differs", [*OLD, CLOSED, certificate(), adopt(blocks=(1, 3))]),
    ("C2.certificate_differs", [*OLD, CLOSED, certificate(), adopt(tokens=48)]),
    ("C2.expired", [*OLD, CLOSED, certificate(), adopt(100)]),
    ("C2.writer_open", [*OLD, certificate()]),
    ("C2.freed", [*OLD, commit(V0, V1, "k"), CLOSED, certificate(), FREE, adopt()]),
    ("C2.generation_differs", [commit(V0, V1, "k"), Submitted(0, K, V1, "r", 2), publish(V1)]),
    ("C2.generation_differs", [commit(V0, V1, "k"), Published(0, K, V1, "r", "n/api", 0, 4)]),
    (
        "C3.page_changed",
        [*OLD, CLOSED, certificate(digests=("aa", "bb")), adopt(digests=("aa", "bc"))],
    ),
    ("C3.foreign_write", [*OLD, Wrote(0, "n", OTHER, V0, (1,))]),
    ("C3.foreign_write", [*OLD, Wrote(0, "n", K, V1, (1,))]),
    ("C3.certified_write", [*OLD, CLOSED, certificate(), adopt(), Wrote(0, "n", K, V0, (1,))]),
    ("C3.owned_twice", [*OLD, Allocated(0, "n", OTHER, V0, (3,))]),
    ("C3.owned_twice", [PIN, Allocated(0, "n", OTHER, V0, (1,))]),
    (
        "C3.freed_running",
        [commit(V0, V1, "k"), Submitted(0, K, V1, "r"), Freed(0, "n", K, V1, (4,))],
    ),
    ("C3.freed_open", [*OLD, commit(V0, V1, "k"), FREE]),
    # What writes after it was closed is open again.
    ("C3.freed_open", [*OLD, CLOSED, Wrote(0, "n", K, V0, (1,)), commit(V0, V1, "k"), FREE]),
    ("C3.freed_open", [CLOSED, *OLD, commit(V0, V1, "k"), FREE]),
    ("C3.freed_open", [*OLD, VersionSeen(0, "n", K, V1), FREE]),
    ("C4.no_progress", [commit(V0, V1, "k"), Submitted(0, K, V1, "r")]),
    ("C5.version_fell", [VersionSeen(0, "n", K, V1), VersionSeen(0, "n", K, V0)]),
    ("C5.commit_fell", [commit(V0, V1, "k1"), commit(V0, V1, "k2")]),
    ("C5.commit_fell", [commit(V1, V0, "k1")]),
    ("C5.term_fell", [RegistryRebuilt(0, "acme", 2), commit(V0, V1, "k")]),
    ("C5.term_fell", [RegistryRebuilt(0, "acme", 2), RegistryRebuilt(0, "acme", 2)]),
    ("C6.freed_pinned", [*OLD, commit(V0, V1, "k"), CLOSED, PIN, FREE]),
    ("C6.unbalanced", [UNPIN]),
    ("C6.unbalanced", [PIN, PinReleased(0, "n", OTHER, V0, (1,))]),
    ("C6.over_quota", [PinTaken(0, "n", K, V0, (1,), -1)]),
    ("C6.idle", [PIN, Idle(0, "n")]),
    ("C8.receipt_early", [certificate(), receipt()]),
    ("C8.receipt_early", [certificate(), Acknowledged(0, K, V0), receipt()]),
    ("C8.index_understated", [publish(V0), ACK, certificate(), receipt(None)]),
    ("C8.certified_differs", [ACK, certificate(), receipt(certified=48)]),
    ("C8.certified_differs", [ACK, receipt()]),
    ("commit.twice", [commit(V0, V1, "k"), commit(V1, V2, "k")]),
    ("commit.pause_moved", [commit(V0, V1, "k", Change.PAUSE)]),
]


def test_a_good_history_breaks_no_rule() -> None:
    """One whole SUPERSEDE with inheritance, pins and reclaim."""
    assert check(GOOD) == []


@pytest.mark.parametrize(("rule", "history"), BAD, ids=[r for r, _ in BAD])
def test_each_rule_sees_its_violation(rule: str, history: list[Record]) -> None:
    """Named, at the last record or at the end of the history."""
    found = check(history)
    assert rule in {v.name for v in found}
    violation = next(v for v in found if v.name == rule)
    at = (len(history) - 1, len(history), 1)  # 1: a generation differs before anything is published
    assert violation.index in at and violation.message
    assert explain(history, violation).startswith(f"{rule}: {RULES[rule]}: ")
    assert trace_of(history, violation), "what led to it can be shown"


def test_every_rule_has_a_violation_above() -> None:
    """A rule that nothing can break would be decoration."""
    assert {rule for rule, _ in BAD} == set(RULES)


def test_pages_that_a_restore_has_written_are_not_compared() -> None:
    """What was certified before its copy came back is another rule's matter."""
    restored = [certificate(digests=("aa", "bb")), Wrote(0, "n", K, V0, (1, 2))]
    kept = [*OLD, publish(V0), CLOSED, *restored, CLOSED, adopt(digests=("cc", "dd"))]
    assert check(kept) == []


def test_a_receipt_may_know_more_than_was_recorded() -> None:
    """A frame may be handed over before its record is written; the other way round is a fault."""
    assert check([publish(V0), CLOSED, ACK, certificate(), receipt(7)]) == []


def test_a_line_says_its_stage_and_leaves_out_what_is_not_known() -> None:
    """The five stages are named in the file; ordinary work has none."""
    stages = [record_to_dict(record).get("stage") for record in GOOD]
    assert set(stages) == {None, "advance", "fence", "align", "resume", "reclaim"}
    assert record_to_dict(publish(V1)).get("stage") is None
    assert "digests" not in record_to_dict(certificate())
    assert record_to_dict(PinTaken(0, "n", K, V0, (1,)))  == {
        "schema": 1, "record": "PinTaken", "stage": "fence", "at_ns": 0, "node": "n",
        "tenant": "acme", "scope": "plan", "version": "1.0", "blocks": [1],
    }  # fmt: skip


def test_a_restarted_node_owns_nothing() -> None:
    """Pins of an engine that is gone are void, so idle holds."""
    assert check([*OLD, PIN, NodeRestarted(0, "n"), Idle(0, "n"), publish(V0)]) == []


def test_another_node_or_tenant_is_not_blamed() -> None:
    """Facts are kept apart by node, scope and consumer."""
    elsewhere = [
        Acknowledged(0, K, V1),
        Published(0, OTHER, V0, "r", "n/api", 0),
        Allocated(0, "m", OTHER, V0, (1,)),
        PIN,
        Idle(0, "m"),
        VersionSeen(0, "n", K, V1),
        VersionSeen(0, "m", K, V0),
    ]
    assert check(elsewhere) == []


def test_a_commit_may_be_recorded_after_others_act_on_it() -> None:
    """The committer's answer was late; without a witness it is running work that loses blocks."""
    first, second = commit(V0, V1, "k1"), commit(V1, V2, "k2")
    running = [first, Submitted(0, K, V1, "r"), publish(V1), Allocated(0, "n", K, V1, (4,))]
    witness = [VersionSeen(0, "n", K, V2), WritersClosed(0, "n", K, V2)]
    free = Freed(0, "n", K, V1, (4,))
    assert check([*running, *witness, free, second]) == []
    assert [v.name for v in check([*running, free, second])] == ["C3.freed_running"]


def test_a_cancelled_scope_owes_no_progress() -> None:
    """C4 is about versions that have work."""
    assert check([Submitted(0, K, V0, "r"), commit(V0, V1, "k", Change.CANCEL)]) == []


def test_a_rebuild_may_forget_what_nobody_was_told() -> None:
    """The new term starts from what is known; the lost commit is no branch of history."""
    lost = commit(V0, V1, "k1")
    rebuilt = RegistryRebuilt(0, "acme", 2)
    after = commit(Version(2, 0), Version(2, 1), "k2")
    assert check([lost, rebuilt, after]) == []


@pytest.mark.parametrize("record", GOOD + tuple(r for _, h in BAD for r in h), ids=lambda r: "")
def test_records_survive_ndjson(record: Record) -> None:
    """Every record type, through real JSON."""
    assert record_from_dict(json.loads(json.dumps(record_to_dict(record)))) == record


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"record": "Nonsense"}, "record.record"),
        ({"schema": 2}, "record.schema"),
        ({"version": 3}, "record.version"),
        ({"at_ns": -1}, "record.at_ns"),
        ({"tenant": "Not A Label"}, "tenant"),
    ],
)
def test_a_bad_record_names_its_field(change: dict, field: str) -> None:
    """A broken line of NDJSON is found at once."""
    with pytest.raises(InvalidField) as caught:
        record_from_dict(record_to_dict(publish(V0)) | change)
    assert caught.value.field == field


def test_several_processes_merge_by_time() -> None:
    """Stable: records of one instant keep their order."""
    a, b = VersionSeen(2, "a", K, V0), VersionSeen(1, "b", K, V0)
    c = VersionSeen(2, "c", K, V0)
    assert in_order([a, b, c]) == [b, a, c]


def test_facts_can_branch() -> None:
    """The model continues one history in many ways."""
    facts = Facts()
    facts.observe(Acknowledged(0, K, V1))
    branch = facts.copy()
    assert branch.frozen() == facts.frozen()
    assert branch.observe(Acknowledged(0, K, V2)) == []
    assert facts.observe(publish(V1)) == [] and branch.observe(publish(V1)) != []
    assert branch.frozen() != facts.frozen()


def test_what_is_no_record_is_refused() -> None:
    """A programmer's error, loudly."""
    with pytest.raises(TypeError):
        Facts().observe("published")  # type: ignore[arg-type]


def test_a_rebuild_retires_the_work_of_lower_terms() -> None:
    """Its blocks may be reclaimed once its writers are closed, and it owes no progress."""
    begun = [commit(V0, V1, "k"), Submitted(0, K, V1, "r"), RegistryRebuilt(0, "acme", 2)]
    closed, freed = WritersClosed(0, "n", K, Version(2, 1)), Freed(0, "n", K, V1, (4,))
    assert check([*begun, closed, freed]) == []
    assert [v.name for v in check([*begun, freed])] == ["C3.freed_open"]
