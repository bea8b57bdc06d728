"""Generated pages and pictures are committed; here they are made again and compared."""

from __future__ import annotations

import re
from pathlib import Path

import docs_pictures
import docs_reference
import pytest

from retire.protocol.history import Record
from retire.protocol.invariants import check
from retire.telemetry.recorded import read

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "docs" / "environment.md"
_VARIABLE = re.compile(r"\bRETIRE_[A-Z][A-Z_]+[A-Z]\b")


@pytest.mark.parametrize("name", sorted(docs_reference.PAGES))
def test_the_reference_is_fresh(name: str) -> None:
    """`make docs-reference` when not."""
    committed = ROOT / "docs" / "reference" / f"{name}.md"
    assert docs_reference.PAGES[name]() == committed.read_text()


def test_no_page_is_left_over() -> None:
    """Each page of the folder is one that is made."""
    found = {path.stem for path in (ROOT / "docs" / "reference").iterdir()}
    assert found == set(docs_reference.PAGES)


def test_a_new_metric_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: one name more, and the page is another."""
    from retire.telemetry import names

    more = names.Metric("retire_planted_total", "counter", "1", "Planted.")
    monkeypatch.setattr(names, "METRICS", (*names.METRICS, more))
    assert docs_reference.metrics() != (ROOT / "docs/reference/metrics.md").read_text()


def test_the_pictures_are_fresh(tmp_path: Path) -> None:
    """Drawn again, the same bytes: from `step`, and from the recorded history."""
    made = docs_pictures.draw(tmp_path)
    assert [path.name for path in made] == ["state-machine.svg", "timeline.svg"]
    for path in made:
        assert path.read_bytes() == (ROOT / "docs" / "pictures" / path.name).read_bytes(), path.name


def test_a_move_that_the_code_lost_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without `Certified` the usual way is no way."""
    kept = {edge for edge in docs_pictures.edges() if edge[1] != "Certified"}
    monkeypatch.setattr(docs_pictures, "edges", lambda: kept)
    with pytest.raises((AssertionError, KeyError)):
        docs_pictures.state_machine(tmp_path / "x.svg")


def test_the_recorded_history_keeps_the_contract() -> None:
    """The sample is a history that `retire check` finds nothing in; control: a late token."""
    records = read(docs_pictures.HISTORY)
    assert check(records) == []
    assert "C1" in {one.name.partition(".")[0] for one in check(_late(records))}


def _late(records: list[Record]) -> list[Record]:
    """The last token of the old version, published once more at the end."""
    commit = docs_pictures.commit_of(records)
    old = [r for r in records if getattr(r, "version", None) == commit.from_version]
    published = [r for r in old if type(r).__name__ == "Published"]
    return [*records, published[-1]]


def promises(page: str) -> dict[str, str]:
    """C1 .. C8 of a page."""
    return dict(re.findall(r"^\| (C\d) \| ([^|]+?) \|", (ROOT / page).read_text(), re.M))


def test_the_contract_is_the_same_everywhere() -> None:
    """What README promises, the site promises."""
    readme, site = promises("README.md"), promises("docs/index.md")
    assert list(readme) == [f"C{number}" for number in range(1, 9)]
    plain = {name: text.replace("*", "") for name, text in site.items()}
    assert plain == readme


def read_variables() -> set[str]:
    """What the product's code reads; benchmarks apart."""
    folders = (ROOT / "node" / "retire", ROOT / "operator" / "retire_operator")
    text = "\n".join(path.read_text() for one in folders for path in one.rglob("*.py"))
    return {name for name in _VARIABLE.findall(text) if f'"{name}"' in text}


def test_every_variable_is_explained() -> None:
    """What the code reads is in docs/environment.md, and nothing else is."""
    assert len(read_variables()) > 40
    assert set(_VARIABLE.findall(ENVIRONMENT.read_text())) == read_variables()
