"""The Kubernetes API as the sidecar uses it: a few JSON calls as this pod's service account.

Translates what HTTP can raise into Unavailable, once. Must never decide anything, and never cache.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import httpx

from retire.protocol.errors import Unavailable
from retire.sidecar.files import Watched

if TYPE_CHECKING:
    from retire.sidecar.config import KubeAccess

TIMEOUT_S: Final = 5.0
_SHOWN: Final = 200  # characters of an answer that a message repeats


class KubeRefused(Unavailable):
    """The API server does not let this service account do it; somebody must grant it."""


class KubeApi:
    """One API server. Calls may be sent twice: a kept-alive connection can turn out to be dead."""

    def __init__(self, access: KubeAccess) -> None:
        self._access = access
        self._authority = Watched((access.ca,))
        self._client: httpx.AsyncClient | None = None

    async def get(self, path: str) -> dict[str, Any] | None:
        """The object at ``path``; None when there is none."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create ``body`` at ``path``; the answer."""
        answer = await self._call("POST", path, body)
        if answer is None:
            raise Unavailable(f"{self._access.url}{path} does not exist on this API server")
        return answer

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        try:
            client = await self._opened()
            try:
                answer = await client.request(method, path, json=body, headers=self._headers())
            except (httpx.RemoteProtocolError, httpx.ReadError):
                answer = await client.request(method, path, json=body, headers=self._headers())
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            self._check(method, path, answer)
            return answer.json()
        except (httpx.HTTPError, OSError, ValueError) as error:  # OSError: token or CA file
            why = str(error) or type(error).__name__
            raise Unavailable(f"Kubernetes API {self._access.url}: {why}") from error

    async def _opened(self) -> httpx.AsyncClient:
        """The client under the CA as it is now."""
        if self._client is not None and not self._authority.changed():
            return self._client
        await self.close()
        self._authority.mark()
        self._client = httpx.AsyncClient(
            base_url=self._access.url, verify=self._verify(), timeout=TIMEOUT_S, trust_env=False
        )
        return self._client

    def _verify(self) -> ssl.SSLContext | bool:
        if self._access.url.startswith("http://"):
            return False
        return ssl.create_default_context(cafile=str(self._access.ca))

    def _headers(self) -> dict[str, str]:
        """Where there is no token the API server sees an anonymous caller, and says so itself."""
        if not self._access.token.is_file():
            return {}
        return {"authorization": f"Bearer {self._access.token.read_text().strip()}"}

    def _check(self, method: str, path: str, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        text = f"{method} {self._access.url}{path} answered {answer.status_code}"
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise KubeRefused(f"{text}: check the service account's role: {answer.text[:_SHOWN]}")
        raise Unavailable(f"{text}: {answer.text[:_SHOWN]}")
