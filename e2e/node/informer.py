"""The harness's view of the API server: plain calls, and watched collections. asyncio.

Level-triggered: a lost watch lists again and reports every difference. Must never decide anything.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import httpx

from e2e.api import MERGE, connection, refusal
from e2e.node.names import key_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e.node.names import Key

Object = dict[str, Any]
_RETRY_S: Final = 0.2
_WATCH_S: Final = 300
_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_LIMITS: Final = httpx.Limits(max_connections=100, keepalive_expiry=30)


class AsyncApi:
    """Calls of one user."""

    def __init__(self, kubeconfig: Path) -> None:
        server, tls, headers = connection(kubeconfig)
        self.http = httpx.AsyncClient(
            base_url=server, verify=tls, headers=headers, timeout=_TIMEOUT, limits=_LIMITS
        )

    async def close(self) -> None:
        """Ends its connections."""
        await self.http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        **params: Any,
    ) -> Object:
        """One request; ApiError unless it succeeds, httpx.TransportError without an answer."""
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": content_type}
        response = await self.http.request(
            method, path, content=content, headers=headers, params=params
        )
        if not response.is_success:
            raise refusal(response)
        return response.json()

    async def merge(self, path: str, body: Object) -> Object:
        """A JSON merge patch."""
        return await self.call("PATCH", path, body, content_type=MERGE)


class Informer:
    """One collection of the whole cluster. ``on_change(before, after)`` at every difference."""

    def __init__(
        self,
        api: AsyncApi,
        path: str,
        on_change: Callable[[Object | None, Object | None], None],
    ) -> None:
        self._api, self._path, self._on_change = api, path, on_change
        self.items: dict[Key, Object] = {}
        self.synced = asyncio.Event()

    def get(self, namespace: str, name: str) -> Object | None:
        """As of now."""
        return self.items.get((namespace, name))

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._watch(version)
            except (httpx.HTTPError, _Expired, json.JSONDecodeError):
                await asyncio.sleep(_RETRY_S)  # the API server restarts, or forgot the version

    async def _list(self) -> str:
        page = await self._api.call("GET", self._path)
        fresh = {key_of(item): item for item in page.get("items", [])}
        for key in [*self.items]:
            if key not in fresh:
                self._set(key, None)
        for key, item in fresh.items():
            self._set(key, item)
        self.synced.set()
        return page["metadata"]["resourceVersion"]

    async def _watch(self, version: str) -> str:
        """Follow events until the server ends the watch; the last version seen."""
        params = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
            "allowWatchBookmarks": "true",
        }
        timeout = httpx.Timeout(_WATCH_S + 30, connect=5.0)
        async with self._api.http.stream(
            "GET", self._path, params=params, timeout=timeout
        ) as answer:
            if not answer.is_success:
                raise _Expired
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _Expired
                version = event["object"]["metadata"]["resourceVersion"]
                self._take(event)
        return version

    def _take(self, event: Object) -> None:
        if event["type"] == "BOOKMARK":
            return
        item = event["object"]
        self._set(key_of(item), None if event["type"] == "DELETED" else item)

    def _set(self, key: Key, item: Object | None) -> None:
        before = self.items.get(key)
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
        if before != item:
            self._on_change(before, item)


class _Expired(Exception):
    """The watch cannot go on from its version."""
