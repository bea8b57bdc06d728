"""The Kubernetes API as the operator uses it: the official client, its blocking calls in threads.

Errors leave as ``errors.py`` draws them. Never decides anything, never keeps anything.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import kubernetes
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from retire_operator.errors import ObjectMissing, from_api
from retire_operator.resource import API_VERSION, GROUP, PLURAL, Ref

T = TypeVar("T")

MANAGER: Final = "retire-operator"
_MERGE: Final = "application/merge-patch+json"
_TIMEOUT_S: Final = (3.0, 10.0)  # to connect, to answer
_THREADS: Final = 16


def load_configuration() -> kubernetes.client.Configuration:
    """The service account's inside a cluster, else KUBECONFIG."""
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException:
        kubernetes.config.load_kube_config(client_configuration=configuration)
    configuration.connection_pool_maxsize = _THREADS
    return configuration


class Kube:
    """One API server."""

    def __init__(self, configuration: kubernetes.client.Configuration) -> None:
        self.client = kubernetes.client.ApiClient(configuration)
        self.core = kubernetes.client.CoreV1Api(self.client)
        self._objects = kubernetes.client.CustomObjectsApi(self.client)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kubernetes")

    def close(self) -> None:
        """Running calls end by their own limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.client.close()

    async def get_scope(self, ref: Ref) -> dict[str, Any]:
        """The object as it is now. ObjectMissing."""
        call = functools.partial(
            self._objects.get_namespaced_custom_object,
            *(GROUP, API_VERSION, ref.namespace, PLURAL, ref.name),
        )
        found: Any = await self._call(f"get servingscope {ref}", call)
        return found

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], *, version: str) -> Any:
        """Merge ``status`` into the object of that resourceVersion; WriteConflict at another."""
        body = {"metadata": {"resourceVersion": version}, "status": dict(status)}
        call = functools.partial(
            self._objects.patch_namespaced_custom_object_status,
            *(GROUP, API_VERSION, ref.namespace, PLURAL, ref.name, body),
            field_manager=MANAGER,
            _content_type=_MERGE,
        )
        return await self._call(f"write the status of servingscope {ref}", call)

    async def patch_finalizers(self, ref: Ref, names: list[str], *, version: str) -> Any:
        """Set the finalizers of the object of that resourceVersion."""
        body = {"metadata": {"resourceVersion": version, "finalizers": names}}
        call = functools.partial(
            self._objects.patch_namespaced_custom_object,
            *(GROUP, API_VERSION, ref.namespace, PLURAL, ref.name, body),
            field_manager=MANAGER,
            _content_type=_MERGE,
        )
        return await self._call(f"write the finalizers of servingscope {ref}", call)

    async def served(self) -> bool:
        """Whether the API server knows ServingScope."""
        call = functools.partial(self._objects.get_api_resources, GROUP, API_VERSION)
        try:
            found = await self._call(f"discover {GROUP}/{API_VERSION}", call)
        except ObjectMissing:
            return False
        return any(resource.name == PLURAL for resource in found.resources)

    async def list_scopes(self, namespace: str = "") -> list[dict[str, Any]]:
        """Every ServingScope, of one namespace or of all."""
        if namespace:
            call = functools.partial(
                self._objects.list_namespaced_custom_object, GROUP, API_VERSION, namespace, PLURAL
            )
        else:
            call = functools.partial(
                self._objects.list_cluster_custom_object, GROUP, API_VERSION, PLURAL
            )
        found: Any = await self._call("list servingscopes", call)
        return list(found["items"])

    async def all_annotations(self) -> dict[str, dict[str, str]]:
        """Of every Namespace."""
        found: Any = await self._call("list namespaces", self.core.list_namespace)
        return {item.metadata.name: dict(item.metadata.annotations or {}) for item in found.items}

    async def annotations(self, namespace: str) -> dict[str, str]:
        """Of a Namespace."""
        call = functools.partial(self.core.read_namespace, namespace)
        found: Any = await self._call(f"get namespace {namespace}", call)
        return dict(found.metadata.annotations or {})

    async def config_map(self, ref: Ref) -> dict[str, str]:
        """The text data of a ConfigMap."""
        call = functools.partial(self.core.read_namespaced_config_map, ref.name, ref.namespace)
        found: Any = await self._call(f"get configmap {ref}", call)
        return dict(found.data or {})

    async def secret(self, ref: Ref) -> dict[str, bytes]:
        """The data of a Secret, decoded."""
        call = functools.partial(self.core.read_namespaced_secret, ref.name, ref.namespace)
        found: Any = await self._call(f"get secret {ref}", call)
        return {name: _decoded(value) for name, value in (found.data or {}).items()}

    async def create_event(self, namespace: str, body: Mapping[str, Any]) -> None:
        """A core/v1 Event. WriteConflict when there is one of that name."""
        event: Any = dict(body)  # the client takes plain objects too
        call = functools.partial(self.core.create_namespaced_event, namespace, event)
        await self._call("create an event", call)

    async def count_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        """Count an Event that happened again."""
        found: Any = await self._call(
            "get an event", functools.partial(self.core.read_namespaced_event, name, namespace)
        )
        patch = {"count": (found.count or 1) + 1, **body}
        call = functools.partial(self.core.patch_namespaced_event, name, namespace, patch)
        await self._call("count an event", call)

    async def _call(self, what: str, request: Callable[..., T]) -> T:
        loop = asyncio.get_running_loop()
        limited = functools.partial(request, _request_timeout=_TIMEOUT_S)
        try:
            return await loop.run_in_executor(self._threads, limited)
        except ApiException as error:
            raise from_api(what, status=error.status, body=error.body) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise from_api(what, status=None, body=str(error)) from error


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return b""
