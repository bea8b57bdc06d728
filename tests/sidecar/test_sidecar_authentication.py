"""Whose a bearer token is: the token file, TokenReview over real HTTP, and the RPC in front."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sidecar_kube import KubeServer, account_of
from sidecar_world import Sidecar, eventually

from e2e.sidecar_certificates import replace
from retire.protocol.errors import Forbidden, InvalidField, Unauthenticated, Unavailable
from retire.sidecar import token_reviews
from retire.sidecar.config import KubeAccess, Settings
from retire.sidecar.kube import KubeApi
from retire.sidecar.token_file import TokenFile
from retire.sidecar.token_reviews import REFUSAL_CACHE_S, REVIEW_CACHE_S, TokenReviews


def entry(token: str, tenant: str, name: str = "ci") -> dict[str, str]:
    return {"sha256": hashlib.sha256(token.encode()).hexdigest(), "tenant": tenant, "name": name}


def write(path: Path, *entries: Any) -> None:
    replace(path, json.dumps({"tokens": [*entries]}).encode())


async def test_a_token_in_the_file_is_its_tenant(folder: Path):
    """Each token is its own tenant's; any other text is nobody's, the digest itself too."""
    write(path := folder / "tokens", entry("one", "acme"), entry("two", "globex", "deploy"))
    tokens = TokenFile(path)
    first, second = await tokens.authenticate("one"), await tokens.authenticate("two")
    assert (first.tenant, first.subject) == ("acme", "ci")
    assert (second.tenant, second.subject) == ("globex", "deploy")
    assert 0 < first.cache_s <= 10
    digest = entry("one", "acme")["sha256"]
    for wrong in ("", "One", "one ", "three", digest, digest.upper(), "x" * 20_000, "é" * 9000):
        with pytest.raises(Unauthenticated) as refused:
            await tokens.authenticate(wrong)
        assert not wrong or wrong not in str(refused.value)


async def test_the_file_is_read_anew(folder: Path):
    """Added and removed tokens count at once; a broken file changes nothing."""
    write(path := folder / "tokens", entry("one", "acme"))
    tokens = TokenFile(path)
    write(path, entry("two", "acme"))
    assert (await tokens.authenticate("two")).tenant == "acme"
    with pytest.raises(Unauthenticated):
        await tokens.authenticate("one")
    for broken in (b'{"tokens": [', b'{"tokens": [{"sha256": "00"}]}', b""):
        replace(path, broken)
        assert (await tokens.authenticate("two")).tenant == "acme"
        with pytest.raises(Unauthenticated):
            await tokens.authenticate("one")
    path.unlink()
    assert (await tokens.authenticate("two")).tenant == "acme"
    write(path)
    with pytest.raises(Unauthenticated):
        await tokens.authenticate("two")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", r"tokens must be \{\"tokens\": \[...\]\}"),
        ("{", "must be a readable JSON file"),
        ('{"tokens": ["plain"]}', r"tokens\[0\] must be"),
        ('{"tokens": [{"sha256": "secret-itself", "tenant": "a"}]}', r"\[0\].sha256 must be the"),
        ('{"tokens": [{"sha256": 7, "tenant": "a"}]}', r"\[0\].sha256 must be the"),
        ('{"tokens": [{"sha256": "%s", "tenant": "A b"}]}' % ("00" * 32), r"\[0\].tenant must be"),
        ('{"tokens": [{"sha256": "%s"}]}' % ("00" * 32), r"\[0\].tenant must be a DNS label"),
    ],
)
def test_a_bad_token_file_names_the_entry(folder: Path, text: str, says: str):
    """Refused at start, by place and rule; what may be a token is not repeated."""
    (path := folder / "tokens").write_text(text)
    with pytest.raises(InvalidField, match=says) as refused:
        TokenFile(path)
    assert str(refused.value).startswith("RETIRE_TOKENS_FILE")
    assert "secret-itself" not in str(refused.value)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def kube(folder: Path) -> Iterator[KubeServer]:
    server = KubeServer(folder).start()
    yield server
    server.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reviews(kube: KubeServer, clock: Clock) -> AsyncIterator[Callable[..., TokenReviews]]:
    opened: list[KubeApi] = []

    def make(*audiences: str) -> TokenReviews:
        account = kube.account
        opened.append(KubeApi(KubeAccess(kube.url, account / "token", account / "ca.crt")))
        return TokenReviews(opened[-1], audiences, clock=clock)

    yield make
    for api in opened:
        await api.close()


async def test_a_service_account_is_its_namespace(
    kube: KubeServer, reviews: Callable[..., TokenReviews]
):
    """The tenant is the namespace; the review is asked for as this pod's own account."""
    kube.tokens["t"] = account_of("team-a", "agent")
    caller = await reviews().authenticate("t")
    assert (caller.tenant, caller.subject) == ("team-a", "system:serviceaccount:team-a:agent")
    assert kube.reviews == [{"token": "t"}]
    assert kube.authorizations == ["Bearer first"]
    kube.account_token("second")
    with pytest.raises(Unauthenticated, match="does not accept"):
        await reviews().authenticate("other")
    assert kube.authorizations[-1] == "Bearer second"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"authenticated": False, "error": "expired"}, Unauthenticated),
        ({}, Unauthenticated),
        ({"authenticated": "true", "user": {"username": "x"}}, Unauthenticated),
        ({"authenticated": True, "user": {"username": "kubernetes-admin"}}, Forbidden),
        ({"authenticated": True, "user": {}}, Forbidden),
        ({"authenticated": True, "user": {"username": "system:serviceaccount:a"}}, Forbidden),
        ({"authenticated": True, "user": {"username": "xsystem:serviceaccount:a:b"}}, Forbidden),
    ],
)
async def test_everybody_else_has_no_tenant(
    kube: KubeServer,
    reviews: Callable[..., TokenReviews],
    status: dict[str, Any],
    error: type[Exception],
):
    """Refused tokens, users that are no service accounts, and answers of another shape."""
    kube.tokens["t"] = status
    with pytest.raises(error):
        await reviews().authenticate("t")


async def test_a_token_for_another_audience_is_refused(
    kube: KubeServer, reviews: Callable[..., TokenReviews]
):
    """Asked for audiences, the answer must name one of them: an API server that ignores them does
    not count."""
    asking = reviews("retire", "retire-2")
    kube.tokens |= {
        "ours": account_of("a", "b", "retire-2"),
        "theirs": account_of("a", "b", "vault"),
        "ignorant": account_of("a", "b"),
    }
    assert (await asking.authenticate("ours")).tenant == "a"
    assert kube.reviews[0]["audiences"] == ["retire", "retire-2"]
    for token in ("theirs", "ignorant"):
        with pytest.raises(Unauthenticated, match="another audience; ask for one of retire"):
            await asking.authenticate(token)


async def test_answers_are_used_again_for_a_while(
    kube: KubeServer, clock: Clock, reviews: Callable[..., TokenReviews]
):
    """A yes for a minute in all, a no for seconds; then the API server is asked again."""
    asking = reviews()
    kube.tokens["t"] = account_of("a", "b")
    assert (await asking.authenticate("t")).cache_s == REVIEW_CACHE_S
    clock.now_s += 45
    assert (await asking.authenticate("t")).cache_s == pytest.approx(REVIEW_CACHE_S - 45)
    assert len(kube.reviews) == 1
    kube.tokens["t"] = {"authenticated": False}
    clock.now_s += REVIEW_CACHE_S - 45
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await asking.authenticate("t")
    assert len(kube.reviews) == 2
    kube.tokens["t"] = account_of("a", "b")
    clock.now_s += REFUSAL_CACHE_S
    assert (await asking.authenticate("t")).tenant == "a"
    assert len(kube.reviews) == 3


async def test_an_api_server_that_is_away_lets_nobody_new_in(
    kube: KubeServer, clock: Clock, reviews: Callable[..., TokenReviews]
):
    """What was verified within the minute goes on; everything else is Unavailable, never a yes,
    and works again when the API server is back."""
    asking = reviews()
    kube.tokens |= {"known": account_of("a", "b"), "new": account_of("c", "d")}
    await asking.authenticate("known")
    kube.stop()
    assert (await asking.authenticate("known")).tenant == "a"
    with pytest.raises(Unavailable, match="Kubernetes API http://127"):
        await asking.authenticate("new")
    clock.now_s += REVIEW_CACHE_S
    with pytest.raises(Unavailable):
        await asking.authenticate("known")
    kube.start()
    for status, says in ((500, "answered 500"), (403, "check the service account's role")):
        kube.fail_with = status
        with pytest.raises(Unavailable, match=says):
            await asking.authenticate("known")
    kube.fail_with = 0
    assert (await asking.authenticate("known")).tenant == "a"
    assert (await asking.authenticate("new")).tenant == "c"


async def test_many_callers_cost_one_review(kube: KubeServer, reviews: Callable[..., TokenReviews]):
    """A hundred calls with one token at once are one review; one that gives up takes none along."""
    asking = reviews()
    kube.tokens["t"] = account_of("a", "b")
    calls = [asyncio.create_task(asking.authenticate("t")) for _ in range(100)]
    await asyncio.sleep(0)
    calls[0].cancel()
    callers = await asyncio.gather(*calls, return_exceptions=True)
    assert len(kube.reviews) == 1
    assert isinstance(callers[0], asyncio.CancelledError)
    assert {caller.tenant for caller in callers[1:]} == {"a"}  # type: ignore[union-attr]


async def test_memory_is_bounded(
    kube: KubeServer, reviews: Callable[..., TokenReviews], monkeypatch: pytest.MonkeyPatch
):
    """Tokens that somebody makes up push each other out, the oldest first."""
    monkeypatch.setattr(token_reviews, "CACHED_MAX", 8)
    asking = reviews()
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await asking.authenticate(f"made-up-{number}")
    assert len(asking._answers) == 8
    with pytest.raises(Unauthenticated):
        await asking.authenticate("made-up-19")
    assert len(kube.reviews) == 20


async def test_the_rpc_says_who_it_is(
    folder: Path, start: Callable[..., Sidecar], kube: KubeServer
):
    """Authenticate over the Unix socket: static, tokenreview, and none, which knows nobody."""
    write(path := folder / "tokens", entry("one", "acme"))
    static = start("s", RETIRE_AUTH="static", RETIRE_TOKENS_FILE=str(path))
    review = start(
        "t", RETIRE_AUTH="tokenreview", RETIRE_TOKEN_AUDIENCES="retire, other", **kube.env
    )
    none = start("n")
    await asyncio.gather(*(node.until_held() for node in (static, review, none)))
    async with static.client() as client:
        found = await client.authenticate("one")
        assert (found.tenant, found.subject) == ("acme", "ci")
        write(path, entry("two", "globex"))

        async def tenant() -> str:
            return (await client.authenticate("two")).tenant

        assert await eventually(tenant, bool, 5) == "globex"
        with pytest.raises(Unauthenticated, match="not in the token file"):
            await client.authenticate("one")
    async with review.client() as client:
        kube.tokens["t"] = account_of("team", "agent", "other")
        found = await client.authenticate("t")
        assert (found.tenant, found.subject) == ("team", "system:serviceaccount:team:agent")
        assert 50 < found.cache_s <= 60
        kube.stop()
        assert (await client.authenticate("t")).tenant == "team"
        with pytest.raises(Unavailable):
            await client.authenticate("unknown")
    async with none.client() as client:
        with pytest.raises(Unauthenticated, match="set RETIRE_AUTH"):
            await client.authenticate("one")
    for node in (static, review, none):
        assert "Bearer" not in node.log.read_text()


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RETIRE_AUTH": "basic"}, "RETIRE_AUTH must be one of none, static, tokenreview"),
        ({"RETIRE_AUTH": "static"}, "RETIRE_TOKENS_FILE must be a JSON file"),
        ({"RETIRE_AUTH": "tokenreview"}, "RETIRE_KUBE_API must be the API server's URL"),
        ({"RETIRE_TERM_LEASE": "a/b"}, "RETIRE_KUBE_API must be .*RETIRE_TERM_LEASE needs it"),
        ({"RETIRE_TERM_LEASE": "name", **IN_POD}, "RETIRE_TERM_LEASE must be namespace/name"),
        ({"RETIRE_TERM_LEASE": "a/b", "RETIRE_TERM_FILE": "/t", **IN_POD}, "absent where"),
        ({"RETIRE_TERM_LEASE": "a/b", "RETIRE_KUBE_API": "api:6443"}, "RETIRE_KUBE_API must be"),
        ({"RETIRE_HTTP_LISTEN": "7071"}, "RETIRE_HTTP_LISTEN must be host:port"),
        ({"RETIRE_HTTP_LISTEN": "127.0.0.1:70710"}, "RETIRE_HTTP_LISTEN must be host:port"),
    ],
)
def test_bad_settings_are_named(env: dict[str, str], says: str):
    """Each is refused at start under its variable."""
    with pytest.raises(InvalidField, match=f"^{says}" if says.startswith("RETIRE") else says):
        Settings.from_env(env)


def test_settings_in_a_pod():
    """What Kubernetes puts into the environment is enough; without need nothing of it is asked."""
    settings = Settings.from_env({"RETIRE_TERM_LEASE": "ns/retire-term", **IN_POD})
    assert settings.kube is not None
    assert settings.kube.url == "https://10.0.0.1:6443"
    assert str(settings.kube.token) == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert str(settings.term_lease) == "ns/retire-term"
    six = Settings.from_env(
        {"RETIRE_TERM_LEASE": "a/b", **IN_POD, "KUBERNETES_SERVICE_HOST": "::1"}
    )
    assert six.kube is not None and six.kube.url == "https://[::1]:6443"
    assert Settings.from_env(IN_POD).kube is None
    assert Settings.from_env({}).tls_clients == ("operator.retire.internal",)
