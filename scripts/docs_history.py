"""Records docs/pictures/history.ndjson: one SUPERSEDE on a real stack with a tiny model.

Usage: python scripts/docs_history.py, then `make docs-reference`. Keeps only the scope's records,
and of the tokens those around the change.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.stack import Stack
from bench.stack_streams import Agent
from retire.protocol.history import HistoryOpened, Published, Record, in_order, record_to_dict
from retire.telemetry.recorded import read

TARGET = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "history.ndjson"
PLAN = [71] * 320
OLD, NEW = 24, 16  # tokens of the old and the new answer


def record(stack: Stack) -> list[Record]:
    """An answer under way is superseded by one that shares most of its prompt."""
    warm = Agent.new(stack, "warm")
    for _ in range(2):  # the first step of a shape is slow, and not what the picture is about
        warm.supersede(warm.opened(), [72] * len(PLAN), max_tokens=4)
    agent = Agent(stack, "plan")
    old = agent.stream(PLAN, max_tokens=1000).tokens_at_least(OLD)
    request = stack.body([*PLAN[:256], *[7] * 40], max_tokens=NEW)
    agent.supersede_stream("1.0", request).ended()
    old.ended()
    agent.post("cancel", {"expected_version": "1.1"}).raise_for_status()
    records = in_order(read(stack.history))
    return [r for r in records if _kept(r)]


def _kept(record: Record) -> bool:
    if isinstance(record, HistoryOpened):
        return False
    key = getattr(record, "key", None)
    return key is not None and key.scope == "plan"


def main() -> None:
    """Write it with clocks that start at zero."""
    with Stack() as stack:
        records = record(stack)
    first_ns = records[0].at_ns
    lines = []
    for one in records:
        plain = record_to_dict(one)
        plain["at_ns"] -= first_ns
        if "expires_ns" in plain:
            plain["expires_ns"] -= first_ns
        lines.append(json.dumps(plain, separators=(",", ":")))
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} records, {sum(isinstance(r, Published) for r in records)} tokens")


if __name__ == "__main__":
    main()
