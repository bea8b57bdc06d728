"""``make observe`` in small: everything it links to answers, with what has just happened."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from bench import observe

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    """A change of mind is on the page, in the metrics that Prometheus scraped, and a trace."""
    screen = io.StringIO()
    with observe.running("qwen3-tiny", tmp_path) as made:
        assert observe.watch(made, 0, Console(file=screen, width=200)) == 1
        links = [where for _, where in made.links() if where.startswith("http")]
        links.remove(f"{made.stack.url}/v1")
        for where in (*links, f"{made.stack.url}/v1/models"):
            assert httpx.get(where, timeout=30, follow_redirects=True).status_code == 200, where
        receipts = httpx.get(f"{made.page}live.json", timeout=30).json()["transitions"]
        made.prometheus.rounds(2)
        assert made.prometheus.value('sum(retire_transitions_total{change="supersede"})') == 1
        trace_id = screen.getvalue().rpartition("/")[2].strip()
        trace = made.observatory.until(trace_id, lambda found: found.named("fence.commit"))
    assert receipts and "1.0 -> 1.1: unpublishable after" in screen.getvalue()
    assert trace.named("fence.commit"), "the trace that was printed is in Jaeger"
