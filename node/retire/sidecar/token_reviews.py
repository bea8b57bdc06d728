"""RETIRE_AUTH=tokenreview: the API server says whose a token is; the tenant is the namespace.

Positive answers are remembered for a minute, negative ones shortly, no answer never. Must never
take silence for a yes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import Forbidden, RetireError, Unauthenticated
from retire.protocol.versions import ScopeKey
from retire.sidecar.authentication import Caller, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.sidecar.kube import KubeApi

REVIEW_CACHE_S: Final = 60.0
REFUSAL_CACHE_S: Final = 5.0
CACHED_MAX: Final = 4096
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True, slots=True)
class _Answer:
    """A remembered review. Refusals are remembered too: a loop of bad tokens costs one review."""

    until_s: float
    caller: Caller | None = None
    refusal: RetireError | None = None


class TokenReviews:
    """Asks the API server; the tenant is the namespace of the service account it names."""

    def __init__(
        self, api: KubeApi, audiences: tuple[str, ...], *, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._audiences = audiences
        self._clock = clock
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}

    async def authenticate(self, token: str) -> Caller:
        """See Authenticator. One review at a time for a token, however many ask."""
        digest = digest_of(token)
        answer = self._answers.get(digest)
        if answer is None or answer.until_s <= self._clock():
            answer = await self._shared(digest, token)
        if answer.caller is None:
            assert answer.refusal is not None
            raise type(answer.refusal)(*answer.refusal.args)
        left_s = answer.until_s - self._clock()
        return Caller(answer.caller.tenant, answer.caller.subject, max(0.0, left_s))

    async def _shared(self, digest: bytes, token: str) -> _Answer:
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._ask(digest, token))
            asking.add_done_callback(lambda done: self._asked(digest, done))
        return await asyncio.shield(asking)

    def _asked(self, digest: bytes, done: asyncio.Task[_Answer]) -> None:
        self._asking.pop(digest, None)
        if not done.cancelled():
            done.exception()  # whoever waits has it; nobody may be left to

    async def _ask(self, digest: bytes, token: str) -> _Answer:
        """Unavailable is never remembered: nothing is known then."""
        asked_s = self._clock()
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = [*self._audiences]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._api.post(_REVIEWS, review)).get("status") or {}
        try:
            answer = _Answer(asked_s + REVIEW_CACHE_S, caller=self._caller(status))
        except (Unauthenticated, Forbidden) as error:
            answer = _Answer(asked_s + REFUSAL_CACHE_S, refusal=error)
        self._answers.pop(digest, None)
        self._answers[digest] = answer
        while len(self._answers) > CACHED_MAX:
            self._answers.popitem(last=False)
        return answer

    def _caller(self, status: dict[str, Any]) -> Caller:
        if status.get("authenticated") is not True:
            raise Unauthenticated("the API server does not accept the bearer token")
        granted = status.get("audiences") or ()
        if self._audiences and not set(granted) & set(self._audiences):
            raise Unauthenticated(
                "the bearer token is for another audience; ask for one of "
                + ", ".join(self._audiences)
            )
        user = str((status.get("user") or {}).get("username") or "")
        namespace, _, name = user.removeprefix(_SERVICE_ACCOUNT).partition(":")
        if not user.startswith(_SERVICE_ACCOUNT) or not name:
            raise Forbidden(f"user {user!r} belongs to no tenant: only service accounts do")
        return Caller(ScopeKey(namespace, "-").tenant, user, REVIEW_CACHE_S)
