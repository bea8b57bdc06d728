"""The API server as the user's kubeconfig names it: ServingScopes, their events, watches.

Owns the connection. Errors leave as failures.py draws them. Must never decide what to write.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from kubernetes.watch import Watch

from retire_operator.kubectl.failures import PluginError, ScopeMissing, translated
from retire_operator.resource import API_VERSION, GROUP, KIND, PLURAL

Body = dict[str, Any]
MANAGER: Final = "kubectl-retire"
_MERGE: Final = "application/merge-patch+json"
_TIMEOUT_S: Final = (5.0, 30.0)  # to connect, to answer
_PAGE: Final = 500
_GONE: Final = 410  # the position of a watch is too old
_BUSY: Final = 429  # also while a CRD is new
_BUSY_S: Final = 0.5
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect(*, kubeconfig: str, context: str, namespace: str) -> Scopes:
    """As kubectl finds its cluster: flags, then KUBECONFIG, then ~/.kube/config, then the pod's
    service account."""
    configuration = kubernetes.client.Configuration()
    try:
        found = _from_file(configuration, kubeconfig or None, context or None)
    except ConfigException as error:
        if kubeconfig or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise PluginError(f"no cluster to talk to: {error}") from error
        kubernetes.config.load_incluster_config(client_configuration=configuration)
        found = _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip()
    configuration.retries = False  # a cluster that is away is said to be away, at once
    return Scopes(kubernetes.client.ApiClient(configuration), namespace or found or "default")


def _from_file(configuration: Any, path: str | None, context: str | None) -> str:
    """Loads it; the namespace of the context."""
    listed: Any = kubernetes.config.list_kube_config_contexts(config_file=path)
    contexts, active = listed
    kubernetes.config.load_kube_config(
        config_file=path, context=context, client_configuration=configuration
    )
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str(chosen["context"].get("namespace") or "")


class Scopes:
    """The ServingScopes of one namespace, or of all."""

    def __init__(self, api: kubernetes.client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._api = api
        self._objects: Any = kubernetes.client.CustomObjectsApi(api)  # typed for one kind
        self._core = kubernetes.client.CoreV1Api(api)

    def close(self) -> None:
        """Close every connection."""
        self._api.rest_client.pool_manager.clear()  # close() leaves the connections open
        self._api.close()

    def get(self, name: str) -> Body:
        """The object as it is now; ScopeMissing."""
        with self._named(f"get servingscope {name!r}"):
            return self._objects.get_namespaced_custom_object(
                *self._at(name), _request_timeout=_TIMEOUT_S
            )

    def every(self, *, everywhere: bool = False) -> list[Body]:
        """All of the namespace, or of every one, by namespace and name."""
        found: list[Body] = []
        token: str | None = None
        while token != "":
            more = {"_continue": token} if token else {}
            with self._named("list servingscopes"):
                page = self._page(everywhere, limit=_PAGE, _request_timeout=_TIMEOUT_S, **more)
            found += page["items"]
            token = (page.get("metadata") or {}).get("continue") or ""
        return found

    def patch(self, name: str, patch: Mapping[str, Any]) -> Body:
        """Merge; Changed when ``patch`` names a resourceVersion that is over."""
        with self._named(f"patch servingscope {name!r}"):
            return self._objects.patch_namespaced_custom_object(
                *self._at(name),
                dict(patch),
                field_manager=MANAGER,
                _content_type=_MERGE,
                _request_timeout=_TIMEOUT_S,
            )

    def changes(self, name: str, after: Body, *, limit_s: float) -> Generator[Body]:
        """The object after every change since ``after``, for at most ``limit_s``; ends early when
        the server ends the watch. ScopeMissing once it is deleted."""
        seconds = max(1, int(limit_s))
        events = Watch().stream(
            self._objects.list_namespaced_custom_object,
            *(GROUP, API_VERSION, self.namespace, PLURAL),
            field_selector=f"metadata.name={name}",
            resource_version=after["metadata"]["resourceVersion"],
            timeout_seconds=seconds,
            _request_timeout=(_TIMEOUT_S[0], max(0.2, limit_s)),
        )
        what = f"watch servingscope {name!r}"
        # An error leaves this frame alive with its traceback: the connection must not stay with it.
        with contextlib.closing(events):
            while True:
                with self._named(what):
                    try:
                        event: Any = next(events, None)
                    except ApiException as error:
                        if error.status not in (_GONE, _BUSY):
                            raise
                        event = None
                        time.sleep(_BUSY_S if error.status == _BUSY else 0.0)
                    except urllib3.exceptions.ReadTimeoutError:
                        event = None
                if event is None:
                    return
                if event["type"] == "DELETED":
                    raise ScopeMissing(f"servingscope {name!r} was deleted")
                yield event["object"]

    def events(self, name: str) -> list[Body]:
        """The events about the object, oldest first."""
        with self._named("list events"):
            found: Any = self._core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.kind={KIND},involvedObject.name={name}",
                _request_timeout=_TIMEOUT_S,
            )
        rows: Any = self._core.api_client.sanitize_for_serialization(found)
        items: list[Body] = rows["items"]
        return sorted(items, key=lambda row: str(row.get("lastTimestamp") or row.get("eventTime")))

    def _at(self, name: str) -> tuple[str, ...]:
        return (GROUP, API_VERSION, self.namespace, PLURAL, name)

    def _page(self, everywhere: bool, **options: Any) -> Any:
        call: Callable[..., Any] = self._objects.list_namespaced_custom_object
        if everywhere:
            call = self._objects.list_cluster_custom_object
            return call(GROUP, API_VERSION, PLURAL, **options)
        return call(GROUP, API_VERSION, self.namespace, PLURAL, **options)

    @contextlib.contextmanager
    def _named(self, what: str) -> Generator[None]:
        try:
            yield
        except ApiException as error:
            raise translated(error, what=what, namespace=self.namespace) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise PluginError(f"{what}: the cluster does not answer: {error}") from error
