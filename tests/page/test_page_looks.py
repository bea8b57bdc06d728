"""What the live page shows of a real node, in a real browser: light, dark, narrow, escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_browser import Browser, Page
from page_probes import ANSWERED, FAINT, FOCUSED, OVERFLOW, SHARES
from page_world import TRACE, World

from retire.protocol.versions import ScopeKey

MARKUP = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
PLAN, LONG = ScopeKey("acme", "plan-7"), ScopeKey("globex", "research/" + "agent-" * 20)
ROWS = "document.querySelectorAll('#rows li').length"


@pytest.fixture(scope="module")
def told(world: World) -> World:
    """Two tenants, five transitions, one of them with markup for a name; pins in the ledger."""
    for key in (PLAN, ScopeKey("acme", MARKUP), LONG, ScopeKey("acme", "refactor-auth")):
        world.supersede(key)
    world.supersede(PLAN, 1, certified=4096)
    world.gates[0].pinned.update({"plan-7": 448, "refactor-auth": 1500})
    world.join(*(ScopeKey("acme", f"session-{n}") for n in range(5)))
    return world


@pytest.fixture
def page(browser: Browser, told: World) -> Iterator[Page]:
    opened = browser.page(told.url)
    opened.until(f"{ANSWERED} && {ROWS} >= 5")
    yield opened
    opened.close()


def test_a_look_says_what_stands_and_what_moved(page: Page, told: World):
    """Scopes with versions, transitions with their times, pins beside quotas, the node's state."""
    text = page.text()
    for word in ("node-a", "Ready", "plan-7", "1.2", "1.1 → 1.2", "4,096", "globex", "model-of-e1"):
        assert word in text
    page.until("document.querySelector('#pins').innerText.includes('1,948 of 2,048 blocks')")
    shown = {entry["scope"]: entry["version"] for entry in told.live()["scopes"]["shown"]}
    assert (shown["plan-7"], shown["session-0"], len(shown)) == ("1.2", "1.0", 9)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
def test_it_is_legible(page: Page, pictures: Path, dark: bool, width: int):
    """Every text reaches WCAG AA; nothing is wider than the window; the picture is kept."""
    name = f"{'dark' if dark else 'light'}-{width}"
    page.shape(width=width, dark=dark)
    assert page.do("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert page.until(f"{OVERFLOW} === 0")
    assert page.do(FAINT) == []
    picture = page.picture(pictures / f"page-{name}.png")
    page.do("document.querySelector('#rows a').click()")
    page.until("document.querySelector('dialog').open")
    assert page.do(FAINT) == []
    assert page.do(OVERFLOW) == 0
    assert page.picture(pictures / f"story-{name}.png") != picture


def test_faint_text_and_wide_pages_would_be_seen(page: Page):
    """Control of the two measures."""
    page.do("document.querySelector('#transitions-title').style.color = '#bbb'")
    assert page.do(FAINT) == ["Last transitions: 1.92"]
    page.do("document.querySelector('#rows').style.width = '3000px'")
    assert page.do(OVERFLOW) > 1000


def shares_differ(page: Page, told: World) -> float:
    """The largest distance of a drawn end from where its time is, as a share of the bar."""
    worst = 0.0
    rows = page.do(f"[...document.querySelectorAll('#rows li')].map({SHARES})")
    records = [one for one in told.live()["transitions"] if one["receipt_json"]]
    stages = page.do(
        f"{[one['receipt_json'] for one in records]}.map(JSON.parse).map((r) => r.stages_ms)"
    )
    seen: dict[str, dict[str, float]] = {}
    for one, times in zip(records, stages, strict=True):  # newest first: completed ones win
        seen.setdefault(f"{one['tenant']} {one['scope']} {one['to_version']}", times)
    longest = max(times["resume"] for times in seen.values())
    drawn = max(row["resume"][1] for row in rows)
    for row, times in zip(rows, seen.values(), strict=True):
        for name in ("commit", "unpublishable", "fence", "align", "resume"):
            wanted = times[name] / longest * drawn
            worst = max(worst, abs(row[name][1] - wanted))
        worst = max(worst, abs(row["point"][0] - times["unpublishable"] / longest * drawn))
    return worst


def test_stages_are_drawn_to_scale(page: Page, told: World):
    """On one scale every stage of every row ends where its milliseconds are; control: one moved."""
    pixel = 2.5 / page.do("document.querySelector('#rows .bar').clientWidth")
    assert shares_differ(page, told) < pixel
    page.do("document.querySelector('#rows .fence').style.width = '40%'")
    assert shares_differ(page, told) > 4 * pixel


def test_each_row_may_have_its_own_scale(page: Page):
    """Then every bar is nearly as long as its column."""
    page.do("document.querySelector('input[value=own]').click()")
    rows = page.do(f"[...document.querySelectorAll('#rows li')].map({SHARES})")
    assert all(0.5 < row["resume"][1] <= 1.001 for row in rows)


def test_names_are_text(page: Page):
    """Markup in a name is shown as it is; it adds no element and runs nothing."""
    assert page.until(f"document.querySelector('#scope-rows').innerText.includes({MARKUP!r})")
    label = page.do("[...document.querySelectorAll('#rows b')].map((b) => b.textContent)")
    assert MARKUP in label
    assert page.do("document.querySelectorAll('script').length") == 1
    assert page.do("document.querySelectorAll('img').length") == 1
    assert page.do("document.title") == "node-a · Retire"
    page.do(
        "[...document.querySelectorAll('#rows a')].find((a) => a.innerText.includes('img')).click()"
    )
    page.until("document.querySelector('dialog').open")
    assert MARKUP in page.do("document.querySelector('#story-title').textContent")
    assert page.complaints() == []


def test_the_browser_refuses_what_the_page_does_not_need(page: Page, told: World):
    """Nothing is loaded from elsewhere; a script in the markup, or a string as markup, is refused
    (so a hole in the escaping would still be no hole), and such refusals are seen here."""
    assert {url for url in page.requested() if not url.startswith(told.url)} <= {"about:blank"}
    refused = (
        "(() => { try { document.body.innerHTML = '<b>x'; return false } catch { return true } })()"
    )
    assert page.do(refused) is True
    elsewhere = (
        "(resolve) => { const i = new Image(); i.onerror = resolve; i.src = '//x.test/x.png' }"
    )
    page.do(f"new Promise({elsewhere}).then(() => true)")
    assert any("Content Security Policy" in said for said in page.complaints())


def test_the_keyboard_reaches_everything(page: Page):
    """Tab: the skip link, the scale, every row; Enter opens a story, Escape gives the focus back;
    an answer of the node leaves the focus where it is."""
    page.press("Tab")
    assert page.do(FOCUSED) == "#transitions"
    seen = [page.do(FOCUSED)]
    while seen[-1] != "match":
        assert len(seen) < 30, seen
        page.press("Tab")
        seen.append(page.do(FOCUSED))
    rows = page.do("[...document.querySelectorAll('#rows a')].map((a) => a.getAttribute('href'))")
    assert [one for one in seen if one in rows] == rows
    assert seen[-2] == rows[-1]
    page.do(f"document.querySelector('#rows a[href=\"{rows[2]}\"]').focus()")
    answers = int(page.do(ANSWERED))
    page.until(f"{ANSWERED} > {answers + 1}")
    assert page.do(FOCUSED) == rows[2]
    page.press("Enter")
    page.until("document.querySelector('dialog').open")
    page.press("Escape")
    page.until("!document.querySelector('dialog').open && location.hash === ''")
    assert page.do(FOCUSED) == rows[2]


def test_a_transition_tells_its_story(page: Page):
    """What became unpublishable when and how, what was inherited, why not more, what is kept; a row
    that is chosen right after a story was closed is told at once."""
    page.do("document.querySelector('#rows li:first-child a').click()")
    page.until("document.querySelector('dialog').open")
    told = page.do("document.querySelector('dialog').innerText")
    assert "supersede" in told or "receipt" in told
    page.press("Escape")
    page.do(
        "[...document.querySelectorAll('#rows a')].find((a) => a.innerText.includes('1.2')).click()"
    )
    page.until("document.querySelector('dialog').open")
    told = page.do("document.querySelector('dialog').innerText")
    for words in (
        "2 gates acknowledged", "stopped between two layers", "2.6 ms after the commit",
        "inherits 4,096 of 4,108 shared tokens", "where the contexts differ",
        "448 blocks stayed pinned in HBM", f"trace {TRACE}", "gate node-a/api-1", "207",
    ):  # fmt: skip
        assert words in told


def test_what_happens_appears_without_reloading(page: Page, told: World):
    """A SUPERSEDE that is made while the page is open, and the story behind its link."""
    before = page.do(ROWS)
    told.supersede(ScopeKey("acme", "later"))
    page.until(f"{ROWS} > {before} && document.querySelector('#rows b').textContent === 'later'")
    assert page.complaints() == []
