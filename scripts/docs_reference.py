"""Writes docs/reference/*.md and docs/pictures/*.svg from the code that they describe.

Usage: python scripts/docs_reference.py. tests/docs proves the committed files fresh. What is said
of a name stands beside that name in the code; a page here only arranges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import docs_pictures
import docs_schemas
import typer
from typer.cli import get_docs_for_click

from retire.cli.app import app
from retire.protocol.edges import edges
from retire.protocol.state import Phase
from retire.telemetry import names
from retire_operator.kubectl.app import app as kubectl_app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MADE = "<!-- Made by scripts/docs_reference.py (`make docs-reference`). Do not edit. -->\n\n"
# Metrics of the API process, in the order of names.py: from this one on, up to the operator's.
FIRST_OF_API = names.LATE_TOKENS.name


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; a bar within a cell is escaped."""
    lines = [[*head]]
    lines += [["---"] * len(lines[0])]
    lines += [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def metrics() -> str:
    """Three tables: who answers them."""
    parts: dict[str, list[names.Metric]] = {"sidecar": [], "api": [], "operator": []}
    part = "sidecar"
    for one in names.METRICS:
        if one.name == FIRST_OF_API:
            part = "api"
        parts["operator" if one.name.startswith("retire_operator_") else part].append(one)
    heads = {
        "sidecar": "## The sidecar\n\n`/metrics` on `RETIRE_HTTP_LISTEN`.\n\n",
        "api": "## The API process\n\nIts `/metrics`, beside vLLM's own.\n\n",
        "operator": "## The operator\n\n`/metrics` on `RETIRE_METRICS_LISTEN`.\n\n",
    }
    about = (
        "A scope's name is never a label. Tenants beyond the first "
        f"{names.TENANT_LABELS_MAX} share the value `{names.TENANT_OTHER}`. Counters end in "
        "`_total`; units are Prometheus's base units.\n\n"
    )
    head = ("metric", "kind", "unit", "labels", "meaning")
    tables = [heads[name] + table(head, map(_metric, found)) for name, found in parts.items()]
    return "# Metrics\n\n" + MADE + about + "\n".join(tables)


def _metric(one: names.Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"`{one.name}`", one.kind, one.unit, labels, one.meaning


def spans() -> str:
    """Spans, then attributes and events."""
    kinds = table(
        ("span", "kind", "service", "parent", "meaning"),
        ((f"`{s.name}`", s.kind, f"`{s.service}`", s.parent, s.meaning) for s in names.SPANS),
    )
    attributes = table(
        ("name", "unit", "meaning"),
        ((f"`{a.name}`", a.unit, a.meaning) for a in names.ATTRIBUTES),
    )
    about = (
        "One trace a transition, joined by W3C trace context from the client's call on. Inference "
        "spans follow OpenTelemetry's GenAI conventions.\n\n"
    )
    return f"# Spans\n\n{MADE}{about}{kinds}\n## Attributes and events\n\n{attributes}"


def commands() -> str:
    """`retire` and `kubectl retire`, as their own help says it."""
    parts = [_command(app, "retire"), _command(kubectl_app, "kubectl-retire")]
    about = "`kubectl-retire` on the `PATH` is `kubectl retire`.\n\n"
    return "# Command line\n\n" + MADE + about + "\n".join(parts)


def _command(program: typer.Typer, name: str) -> str:
    command = typer.main.get_command(program)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name=name), name=name)
    lines = [f"#{line}" if line.startswith("#") else line for line in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip() + "\n"


def state_machine() -> str:
    """Every edge that `step` has, one row an event and one column a phase."""
    found: dict[tuple[str, Phase], set[str]] = {}
    for before, event, after in edges():
        found.setdefault((event, before), set()).add(after.value if after != before else "same")
    events = sorted({event for event, _ in found})
    rows = [
        [
            f"`{event}`",
            *(", ".join(sorted(found.get((event, phase), ()))) or "·" for phase in Phase),
        ]
        for event in events
    ]
    about = (
        "Every phase, event and phase after, found by running the production `step` through one "
        "change of a scope (supersede, cancel, pause and resume) on two nodes, a rebuild "
        "included. A dot is an event that is illegal there, or that this exploration does not "
        "meet. Several phases in a cell: what else is known decides.\n\n"
        "![The state machine](../pictures/state-machine.svg)\n\n"
    )
    head = ("event", *(phase.value for phase in Phase))
    return "# State machine\n\n" + MADE + about + table(head, rows)


PAGES: dict[str, Callable[[], str]] = {
    "metrics": metrics,
    "spans": spans,
    "cli": commands,
    "state-machine": state_machine,
    "http": lambda: docs_schemas.http(table, MADE),
    "grpc": lambda: docs_schemas.grpc(table, MADE),
    "crd": lambda: docs_schemas.crd(table, MADE),
}


def main() -> None:
    """Write all of them."""
    for name, page in PAGES.items():
        (DOCS / "reference" / f"{name}.md").write_text(page())
    docs_pictures.draw(DOCS / "pictures")


if __name__ == "__main__":
    main()
