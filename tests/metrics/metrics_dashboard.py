"""Reads the dashboards of the chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "charts" / "retire" / "dashboards" / "retire.json"


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel that is not a row."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """(panel, expression) of every query."""
    return [
        (panel["title"], target["expr"])
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
