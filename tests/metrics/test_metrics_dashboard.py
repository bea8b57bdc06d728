"""The dashboard: what the code makes, valid by Grafana's schema, every panel explained."""

from __future__ import annotations

import copy
import json
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from metrics_dashboard import DASHBOARD, ROOT, panels

register_default_plugins()  # the schemas of panels and of Prometheus queries


@pytest.fixture
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def unknown(ours: Any, schema: Any, at: str = "") -> Iterator[str]:
    """Paths in ``ours`` that a reader who knows only the schema does not see as they are."""
    if isinstance(ours, dict) and isinstance(schema, dict):
        for key, value in ours.items():
            if key in schema:
                yield from unknown(value, schema[key], f"{at}.{key}")
            else:
                yield f"{at}.{key}"
    elif isinstance(ours, list) and isinstance(schema, list) and len(ours) == len(schema):
        for number, (one, other) in enumerate(zip(ours, schema, strict=True)):
            yield from unknown(one, other, f"{at}[{number}]")
    elif ours != schema:
        yield at


def read_by_schema(dashboard: dict[str, Any]) -> dict[str, Any]:
    """What Grafana's own types make of it."""
    return json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(dashboard)))


def test_the_file_is_what_the_code_makes(monkeypatch: pytest.MonkeyPatch, dashboard: dict):
    """Fresh: ``python scripts/dashboards.py`` would change nothing."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    made = runpy.run_path(str(ROOT / "scripts" / "dashboards.py"))["dashboard"]()
    assert made == dashboard


def test_grafana_s_schema_knows_all_of_it(dashboard: dict):
    """Read by Grafana's types and written again, nothing is lost or changed."""
    assert list(unknown(dashboard, read_by_schema(dashboard))) == []


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [((), "titel", "Retire"), (("panels", 1), "unit", "s"), (("panels", 1, "gridPos"), "z", 1)],
)
def test_a_field_that_grafana_does_not_have_would_be_seen(
    dashboard: dict, where: tuple, name: str, value: Any
):
    """CONTROL: a misspelt field, one in the wrong place."""
    wrong = place = copy.deepcopy(dashboard)
    for step in where:
        place = place[step]
    place[name] = value
    (found,) = unknown(wrong, read_by_schema(wrong))
    assert found.endswith(f".{name}")


def test_every_panel_says_what_it_shows(dashboard: dict):
    """Title, description and unit; rows by question; nothing overlaps."""
    rows = [one["title"] for one in dashboard["panels"] if one["type"] == "row"]
    assert rows == ["Guarantee", "Latency", "GPU saved", "KV and pins", "Registry", "Tenants"]
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"] and panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    names = {one["name"] for one in dashboard["templating"]["list"]}
    assert {"datasource", "namespace", "pod", "tenant"} <= names
