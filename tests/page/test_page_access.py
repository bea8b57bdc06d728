"""Who may look at what: tokens where the API asks for them, else this host alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator

import httpx
import pytest
from conftest import short_folder
from page_browser import Browser
from page_probes import ANSWERED
from page_world import World

from retire.protocol.versions import ScopeKey


def entry(token: str, tenant: str) -> dict[str, str]:
    return {"sha256": hashlib.sha256(token.encode()).hexdigest(), "tenant": tenant, "name": "t"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[World]:
    """Two tenants with a token, a scope and a transition each."""
    folder = short_folder()
    tokens = folder / "tokens"
    tokens.write_text(json.dumps({"tokens": [entry("one", "acme"), entry("two", "globex")]}))
    with World(folder, RETIRE_AUTH="static", RETIRE_TOKENS_FILE=str(tokens)) as world:
        world.supersede(ScopeKey("acme", "acme-plan"))
        world.supersede(ScopeKey("globex", "globex-plan"))
        world.gates[0].pinned.update({"acme-plan": 1, "globex-plan": 2})
        yield world
    shutil.rmtree(folder, ignore_errors=True)


def get(world: World, path: str = "/live.json", **headers: str) -> httpx.Response:
    return httpx.get(f"{world.url}{path}", headers=headers, timeout=60)


def test_without_a_token_nothing_is_told(guarded: World):
    """401 for none, another scheme, or a wrong one; 403 for a tenant that is not the token's."""
    for headers in ({}, {"authorization": "Basic one"}, {"authorization": "Bearer three"}):
        answer = get(guarded, **headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "plan" not in answer.text
    wrong = {"authorization": "Bearer one", "x-retire-tenant": "globex"}
    assert get(guarded, **wrong).status_code == 403


@pytest.mark.parametrize(
    ("token", "own", "other"), [("one", "acme", "globex"), ("two", "globex", "acme")]
)
def test_a_token_shows_its_own_tenant_alone(guarded: World, token: str, own: str, other: str):
    """Scopes, transitions and pins of one tenant; the other's name is nowhere in the answer."""
    answer = get(guarded, authorization=f"Bearer {token}")
    assert answer.status_code == 200
    assert other not in answer.text
    body = answer.json()
    assert [one["scope"] for one in body["scopes"]["shown"]] == [f"{own}-plan"]
    assert {one["tenant"] for one in body["transitions"]} == {own}
    assert [one["tenant"] for one in body["pins"]] == [own]
    assert body["pins"][0]["pinned_blocks"] > 0
    assert "slots_free" not in body["node"], "how much all tenants use is nobody's business"


def test_the_browser_asks_for_the_token(guarded: World, browser: Browser):
    """A form, a clear refusal, then the tenant; the token is in this tab only."""
    page = browser.page(guarded.url)
    page.until(f"{ANSWERED} && !document.querySelector('#sign-in').hidden")
    assert "plan" not in page.text()
    for token, seen in (("three", "not in the token file"), ("two", "globex-plan")):
        page.do("document.querySelector('#token').value = ''")
        page.do("document.querySelector('#token').focus()")
        page.type(token)
        page.press("Enter")
        page.until(f"document.body.innerText.includes({seen!r})")
    text = page.text()
    assert "globex on node-a" in text
    assert "acme" not in text
    assert page.do("document.querySelector('#sign-in').hidden")
    assert page.do("JSON.stringify([document.cookie, localStorage.length])") == '["",0]'
    page.close()


def test_without_authentication_only_this_host_may_look(world: World):
    """A name of elsewhere that points here is refused (DNS rebinding)."""
    world.join(ScopeKey("acme", "here"))
    port = world.url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost"):
        assert get(world, host=host).status_code == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0"):
        answer = get(world, host=host)
        assert answer.status_code == 403
        assert "here" not in answer.text.partition("message")[0]
    assert [
        one["tenant"] for one in get(world, **{"x-retire-tenant": "acme"}).json()["scopes"]["shown"]
    ] == ["acme"]
    assert get(world, **{"x-retire-tenant": "nobody"}).json()["scopes"]["shown"] == []


def test_it_only_reads_and_says_what_is_wrong(world: World):
    """405 for every method that changes things; 400 naming a bad parameter; strict headers."""
    for path in ("/", "/live.json", "/page.js"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert httpx.request(method, world.url + path, timeout=60).status_code == 405
    for query in ("after=x", "after=-1", "limit=1001", f"after={'9' * 30}", f"match={'x' * 201}"):
        answer = get(world, f"/live.json?{query}")
        assert answer.status_code == 400
        assert query.partition("=")[0] in answer.json()["error"]["message"]
    for path in ("/", "/page.css", "/page.js", "/draw.js", "/story.js", "/icon.svg", "/live.json"):
        headers = get(world, path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
