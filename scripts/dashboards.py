"""Writes charts/retire/dashboards/retire.json from rows and panels that are data here.

Usage: python scripts/dashboards.py. tests/metrics proves the file fresh, valid by Grafana's schema,
and every expression answered by a Prometheus that scraped a real run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard_rows import OURS, ROWS, Panel

TARGET = Path(__file__).resolve().parents[1] / "charts" / "retire" / "dashboards" / "retire.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 38  # Grafana 10.1
COLUMNS, HEIGHT = 24, 8


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": "retire-overview",
        "title": "Retire",
        "description": "Did the stop work, how fast, what did it save, who is using the pins?",
        "tags": ["retire", "vllm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(variables())},
        "annotations": {"list": []},
        "panels": list(panels()),
    }


def variables() -> Iterator[dict[str, Any]]:
    """Data source, namespace, node, tenant."""
    yield {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "description": "A Prometheus that scrapes nodes and operator.",
    }  # fmt: skip
    yield variable("namespace", "Namespace", "label_values(retire_node_ready, namespace)")
    yield variable("pod", "Node", 'label_values(retire_node_ready{namespace=~"$namespace"}, pod)')
    yield variable(
        "tenant", "Tenant", f"label_values(retire_tenant_transitions_total{{{OURS}}}, tenant)"
    )


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """One that is filled from the data source; everything by default."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1,
        "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }  # fmt: skip


def panels() -> Iterator[dict[str, Any]]:
    """Rows, and panels placed from left to right."""
    number, y = 1, 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place,
               "panels": []}  # fmt: skip
        number, x, y = number + 1, 0, y + 1
        for panel in row:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT}
            yield {"id": number, "gridPos": place, **drawn(panel)}
            number, x = number + 1, x + panel.width
        y += HEIGHT


def drawn(panel: Panel) -> dict[str, Any]:
    """A panel without its place."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options(panel),
        "targets": [
            target(panel, chr(ord("A") + number), *query)
            for number, query in enumerate(panel.queries)
        ],
    }


def options(panel: Panel) -> dict[str, Any]:
    """Of the panel's kind."""
    if panel.kind == "stat":
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "area",
                "textMode": "auto", "justifyMode": "auto", "orientation": "auto"}  # fmt: skip
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def target(panel: Panel, ref: str, expression: str, legend: str) -> dict[str, Any]:
    """One query."""
    return {
        "refId": ref,
        "datasource": SOURCE,
        "expr": expression,
        "legendFormat": legend,
        "range": True,
        "instant": False,
        "exemplar": panel.traces,
        "editorMode": "code",
    }


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
