"""Lists of whole kinds, straight from the API server: ServingScopes and namespaces' annotations.

For the registry's guard and the quotas, which must not trust a watch that may be behind. Must never
write anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import urllib3.exceptions
from kubernetes import client as kubernetes
from kubernetes.client.exceptions import ApiException

from retire_operator.errors import ObjectMissing, from_api
from retire_operator.resource import API_VERSION, GROUP, PLURAL

_PAGE: Final = 500
_TIMEOUT_S: Final = (3.0, 20.0)  # to connect, to answer
NAMESPACES_S: Final = 5.0  # annotations change rarely


class Listing:
    """``watched`` names the namespaces to look at; empty: all. ``clock`` is monotonic."""

    def __init__(
        self,
        api: kubernetes.ApiClient,
        *,
        watched: Iterable[str] = (),
        clock: Callable[[], float],
    ) -> None:
        self._objects = kubernetes.CustomObjectsApi(api)
        self._core = kubernetes.CoreV1Api(api)
        self._watched = tuple(watched)
        self._clock = clock
        self._annotations: tuple[float, dict[str, dict[str, str]]] | None = None

    async def scopes(self) -> list[dict[str, Any]]:
        """Every ServingScope, as it is now."""
        if not self._watched:
            return await self._pages(
                "list servingscopes", self._objects.list_cluster_custom_object, PLURAL
            )
        found: list[dict[str, Any]] = []
        for namespace in self._watched:
            what = f"list servingscopes of {namespace}"
            listing = self._objects.list_namespaced_custom_object
            found += await self._pages(what, listing, namespace, PLURAL)
        return found

    async def namespaces(self) -> dict[str, dict[str, str]]:
        """The annotations of every namespace by its name, at most a few seconds old."""
        now_s = self._clock()
        if self._annotations is None or now_s - self._annotations[0] >= NAMESPACES_S:
            self._annotations = (now_s, await self._namespaces())
        return self._annotations[1]

    async def _namespaces(self) -> dict[str, dict[str, str]]:
        if not self._watched:
            listing = self._core.list_namespace
            found: Any = await _call("list namespaces", listing, resource_version="0")
            return {n.metadata.name: dict(n.metadata.annotations or {}) for n in found.items}
        annotations: dict[str, dict[str, str]] = {}
        for name in self._watched:
            try:
                one: Any = await _call(f"get namespace {name}", self._core.read_namespace, name)
            except ObjectMissing:
                continue
            annotations[name] = dict(one.metadata.annotations or {})
        return annotations

    async def _pages(
        self, what: str, listing: Callable[..., Any], *names: str
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            more = {"_continue": token} if token else {}
            page = await _call(what, listing, GROUP, API_VERSION, *names, limit=_PAGE, **more)
            found += page["items"]
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return found


async def _call(what: str, request: Callable[..., Any], *names: str, **options: Any) -> Any:
    try:
        return await asyncio.to_thread(request, *names, _request_timeout=_TIMEOUT_S, **options)
    except ApiException as error:
        raise from_api(what, status=error.status, body=error.body) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise from_api(what, status=None, body=str(error)) from error
