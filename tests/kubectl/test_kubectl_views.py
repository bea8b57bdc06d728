"""What people read, as plain text: compared with files in snapshots/."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubectl_world import NOW_S, check_snapshot, plain, ready, receipt, scope

from retire_operator.kubectl import tables, transitions
from retire_operator.kubectl.description import describe
from retire_operator.kubectl.words import age, bar, ms

RECEIPTS = {
    "full": receipt(),
    "bare": {"kind": "supersede", "toVersion": "1.4"},
    "cancel": receipt(
        kind="cancel", by="runtime", gatesLeaseEnded=0, retiredRequests=1, certifiedTokens=None
    ),
    "failed": receipt(
        fenceMs=None, residualMs=None, certifiedTokens=None, error="node b gave no receipt"
    ),
}


@pytest.mark.parametrize("case", RECEIPTS)
def test_a_receipt(case: str):
    """Stage bars stand where their time was; what is not known is not shown."""
    check_snapshot(f"receipt-{case}", plain(transitions.receipt_table("acme/plan", RECEIPTS[case])))


def test_the_timeline_is_to_scale():
    """All transitions on one scale: the longest fills it, the others are shorter."""
    rows = [
        receipt(6, fenceMs=48.0),
        receipt(5, by="runtime", fenceMs=24.0, certifiedTokens=0),
        receipt(4, fenceMs=None, commitMs=None, unpublishableMs=None),
        receipt(3, error="fenced late"),
        {"kind": "pause", "toVersion": "1.3", "fromVersion": "1.3"},
    ]
    text = plain(transitions.timeline(rows))
    check_snapshot("timeline", text)
    lengths = [sum(line.count(mark) for mark in "░▒█") for line in text.splitlines()[1:3]]
    assert lengths == [transitions.BAR_COLUMNS, transitions.BAR_COLUMNS // 2]


SCOPES = [
    scope(
        "plan",
        spec={"quota": {"pinnedBlocks": 64}},
        status={
            "version": "1.4",
            "phase": "Active",
            "tenant": "acme",
            "inheritedTokens": 624,
            "pinnedBlocks": 39,
            "conditions": [ready()],
            "participants": [{"node": "a", "requests": 2}, {"node": "b", "requests": 1}],
        },
    ),
    scope(
        "side",
        status={
            "version": "1.2",
            "phase": "Blocked",
            "pinnedBlocks": 3,
            "conditions": [ready("False", "ConfigMapMissing", "no ConfigMap acme/x")],
        },
    ),
    scope("new", namespace="globex", creationTimestamp="2026-11-30T00:53:00Z"),
    scope(
        "big",
        namespace="globex",
        status={"version": "1.9", "phase": "Paused", "pinnedBlocks": 21, "conditions": [ready()]},
    ),
]


def test_status_is_a_table_like_get():
    """One line a scope; with the namespace where they are of several."""
    check_snapshot("status", plain(tables.status_table(SCOPES, now_s=NOW_S)))
    text = plain(tables.status_table(SCOPES, now_s=NOW_S, everywhere=True))
    check_snapshot("status-everywhere", text)


def test_top_ranks_by_pinned_blocks():
    """Tenants with their sums, then the scopes, the most first."""
    check_snapshot("top", plain(tables.top(SCOPES)))
    assert "No ServingScopes" in plain(tables.top([]))


EVENTS = [
    {
        "type": "Normal",
        "reason": "Superseded",
        "message": "1.3 -> 1.4 by revision, unpublishable in 4.81 ms",
        "lastTimestamp": "2026-11-30T00:50:00Z",
    },
    {
        "type": "Warning",
        "reason": "NoReadyNode",
        "message": "no node of pool 'default' is ready",
        "count": 3,
        "lastTimestamp": "2026-11-30T00:53:00Z",
    },
]


def test_describe_tells_everything():
    """Head, conditions, nodes, transitions on a time scale with a legend, events."""
    body = scope(
        spec={
            "parentRef": {"name": "root"},
            "onNewInput": "interrupt",
            "contract": {"fenceBoundMs": 8, "retention": {"tier": "dram", "ttlSeconds": 60}},
            "context": {"model": "m", "inline": {"messages": [{"role": "user", "content": "x"}]}},
            "quota": {"pinnedBlocks": 64},
        },
        status={
            "version": "1.4",
            "phase": "Active",
            "tenant": "acme",
            "traceId": "4bf92f3577b34da6a3ce929d0e0e0004",
            "inheritedTokens": 624,
            "pinnedBlocks": 39,
            "conditions": [
                ready(),
                {**ready("False", "QuotaExceeded", "x" * 130), "type": "QuotaAvailable"},
            ],
            "participants": [
                {
                    "node": "node-0",
                    "bootId": "b1",
                    "version": "1.4",
                    "requests": 2,
                    "pinnedBlocks": 39,
                    "ready": True,
                }
            ],
            "receipts": [receipt(4), receipt(3, fenceMs=9.6)],
            "prewarm": {
                "version": "1.4",
                "node": "node-0",
                "promptTokens": 700,
                "cachedTokens": 624,
            },
        },
    )
    check_snapshot("describe", plain(describe(body, EVENTS, now_s=NOW_S)))


def test_describe_of_what_nobody_has_looked_at():
    """Nothing is invented; why the events are missing is said."""
    text = plain(describe(scope(), None, now_s=NOW_S, events_why="list events: forbidden"))
    check_snapshot("describe-new", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (900, "15m"),
        (3600 * 5 + 60 * 12, "5h12m"),
        (3600 * 9, "9h"),
        (86400 * 3 + 3600 * 4, "3d4h"),
        (86400 * 30, "30d"),
        (86400 * 800, "2y"),
        (-5, "0s"),
    ],
)
def test_ages_read_as_in_kubectl(seconds: float, text: str):
    """Two units while the first is small."""
    assert age("2026-11-30T00:00:00Z", 1_795_996_800.0 + seconds) == text


def test_an_age_nobody_knows():
    """An object that was never stored."""
    assert age(None, NOW_S) == "<unknown>"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.456, "0.46 ms"), (9.99, "9.99 ms"), (12.34, "12.3 ms"), (1234.5, "1234 ms")],
)
def test_milliseconds(value: float | None, text: str):
    """Three digits or so."""
    assert ms(value) == text


@given(ends=st.lists(st.floats(0, 1000), max_size=6), width=st.integers(8, 60))
def test_bars_are_to_scale(ends: list[float], width: int):
    """Within the width; a span is within a column or so of its true length, and never unseen."""
    ends = sorted(ends)
    spans = [(a, b, "█") for a, b in zip([0.0, *ends], ends, strict=False)]
    scale = max(ends, default=0.0)
    drawn = bar(spans, scale, width)
    assert len(drawn) <= width
    if scale > 0:
        assert drawn.count("█") == width  # without gaps, to the end
    last = bar(spans[-1:], scale, width).strip() if spans else ""
    if spans and spans[-1][1] > spans[-1][0]:
        true = (spans[-1][1] - spans[-1][0]) / scale * width
        assert 1 <= len(last) <= true + 2
