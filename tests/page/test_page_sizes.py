"""No scope at all, a thousand of them, and a node that goes away."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import short_folder
from page_browser import Browser
from page_probes import ANSWERED, OVERFLOW
from page_world import TRACE, World

from retire.protocol.versions import ScopeKey

SCOPE_ROWS = "document.querySelectorAll('#scope-rows tr').length"


def test_from_no_scope_to_a_node_that_is_gone(browser: Browser, pictures: Path):
    """An empty node says how to begin; a trace has a link where traces are shown; when the node
    stops answering the page says that what it shows is old."""
    folder = short_folder()
    with World(folder, RETIRE_TRACE_URL="http://jaeger.test/trace/{trace_id}") as world:
        page = browser.page(world.url)
        page.until(f"{ANSWERED} && document.body.innerText.includes('Nothing was superseded yet')")
        text = page.text()
        for said in ("No scope.", "x-retire-scope", "Nothing is pinned", "Ready"):
            assert said in text
        assert "Inherited" not in text, "no table without rows"
        page.picture(pictures / "page-empty.png")
        world.supersede(ScopeKey("acme", "first"))
        page.until("!!document.querySelector('#rows a')")
        page.do("document.querySelector('#rows a').click()")
        link = page.until("document.querySelector('dialog a')?.href")
        assert link == f"http://jaeger.test/trace/{TRACE}"
        page.press("Escape")
    page.until("document.body.innerText.includes('what is shown is old')")
    assert page.do("document.querySelector('#state').textContent") == "No answer"
    assert "first" in page.text()
    page.picture(pictures / "page-gone.png")
    page.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_thousand_scopes(browser: Browser, pictures: Path):
    """The last used hundred at first, all on request, any by name; the page stays in its width."""
    folder = short_folder()
    with World(folder) as world:
        world.join(*(ScopeKey(f"tenant-{n % 7}", f"agent-{n:04d}") for n in range(1000)))
        page = browser.page(world.url)
        page.until(f"{SCOPE_ROWS} === 100")
        assert "100 of 1,000, last used first" in page.text()
        page.picture(pictures / "page-thousand.png")
        page.do("document.querySelector('#all').click()")
        page.until(f"{SCOPE_ROWS} === 1000")
        assert page.do("document.querySelector('#all').hidden")
        page.do("document.querySelector('#match').focus()")
        page.type("agent-0777")
        page.until(f"{SCOPE_ROWS} === 1")
        assert page.do("document.querySelector('#scope-rows td').textContent") == "agent-0777"
        page.type("x")
        page.until(f"{SCOPE_ROWS} === 0 && document.body.innerText.includes('No scope')")
        assert page.do(OVERFLOW) == 0
        assert page.complaints() == []
        page.close()
    shutil.rmtree(folder, ignore_errors=True)
