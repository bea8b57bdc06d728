"""A short composition runs to its files; several tables share one engine; the sums are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import composition, composition_tables
from bench.composition import WAYS, Column, Table, rows
from bench.dominance_engine import Trial


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_the_tables_share_an_engine(tmp_path: Path):
    """Fence, composition and dominance: each in its own file, successors right, both parts work."""
    given = composition_tables.options(
        ["--prompt", "512", "--pairs", "1", "--sweep-s", "1", "--root", str(tmp_path)]
    )
    assert composition_tables.run(given, Console(quiet=True)) == 0
    found: dict[str, dict[str, float]] = {}
    for bench in ("fence", "composition", "dominance"):
        path = tmp_path / "results" / "cpu" / f"{bench}.json"
        found |= {row["metric"]: row for row in json.loads(path.read_text())["rows"]}
        assert "</svg>" in path.with_suffix(".svg").read_text()
    assert found["compose.native_cold_reused"]["ours"] == 0
    assert found["compose.invalidate_reused"]["ours"] == 0
    assert found["compose.inherit_reused"]["ours"] > 0
    assert found["compose.default_reused"]["ours"] > 0
    assert found["compose.table_wrong_successors"]["ours"] == 0
    assert found["fence.long_prefill_ms"]["ours"] > 0


def _table(wrong: int = 0) -> Table:
    times = {column: [100.0, 110.0, 90.0] for column in Column}
    times[Column.DEFAULT] = [20.0, 22.0, 27.0]
    return Table(
        {
            column: [Trial(ms, ms, (1, 2), 0, 0, None) for ms in series]
            for column, series in times.items()
        },
        wrong,
    )


def test_the_goal_is_on_paired_reductions():
    """The median of each pair's saving, not the saving of the medians."""
    found = {row.metric: row for row in rows(_table())}
    assert found["compose.vs_cold_pct"].ours == pytest.approx(80.0)
    assert found["compose.vs_cold_pct"].met is True
    assert found["compose.invalidate_pct"].ours == 0
    assert found["compose.table_wrong_successors"].ours == 0


def test_a_wrong_successor_would_be_seen():
    """CONTROL: it is counted, whatever the times."""
    found = {row.metric: row for row in rows(_table(wrong=2))}
    assert found["compose.table_wrong_successors"].ours == 2
    assert set(WAYS) == set(Column)
    assert composition.quick(Path()).pairs == 1
