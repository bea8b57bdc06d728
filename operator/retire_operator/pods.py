"""Which pods are nodes: list and watch by label, in a thread of its own. Kubernetes' view only.

A pod counts as there while it runs and has an address; ready is the kubelet's word. Must never talk
to a sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import urllib3.exceptions
from kubernetes import client as kubernetes
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from retire.telemetry.logs import fields
from retire_operator.resource import POOL_LABEL

_log = logging.getLogger("retire.operator")

_WATCH_S: Final = 300  # the server ends a watch after this; a dead connection is noticed soon after
_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_PORT_NAME: Final = "grpc"


@dataclass(frozen=True, slots=True)
class Pod:
    """A running node pod."""

    name: str  # also the node's name (RETIRE_NODE)
    uid: str
    pool: str
    address: str  # host:port of its sidecar
    ready: bool


def read(body: Mapping[str, Any], *, port: int) -> Pod | None:
    """A pod as the API server tells it; None: it has no sidecar to talk to (any more)."""
    meta, status = body["metadata"], body.get("status") or {}
    pool = (meta.get("labels") or {}).get(POOL_LABEL)
    if not pool or not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    ready = any(
        row.get("type") == "Ready" and row.get("status") == "True"
        for row in status.get("conditions") or ()
    )
    host = f"[{status['podIP']}]" if ":" in status["podIP"] else status["podIP"]
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        pool=pool,
        address=f"{host}:{_named_port(body) or port}",
        ready=ready and not meta.get("deletionTimestamp"),
    )


def _named_port(body: Mapping[str, Any]) -> int | None:
    spec = body.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    ports = (port for container in containers for port in container.get("ports") or ())
    return next((p["containerPort"] for p in ports if p.get("name") == _PORT_NAME), None)


class PodInformer:
    """Keeps the pods of one namespace; tells ``changed`` in the event loop after every change."""

    def __init__(
        self,
        api: kubernetes.CoreV1Api,
        *,
        namespace: str,
        port: int,
        changed: Callable[[tuple[Pod, ...]], None],
    ) -> None:
        self._api, self._namespace, self._port = api, namespace, port
        self._changed = changed
        self._pods: dict[str, Pod] = {}
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listed = asyncio.Event()  # the first list has come

    def start(self) -> None:
        """Begin, in the running loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="pods", daemon=True).start()

    def stop(self) -> None:
        """End the thread at its next chance."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            try:
                version = self._list()
                attempt = 0
                self._follow(version)
            except ApiException as error:
                if error.status == 410:  # the position is too old: list again at once
                    continue
                self._wait(attempt, f"{error.status} {error.reason}")
                attempt += 1
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                self._wait(attempt, str(error))
                attempt += 1

    def _wait(self, attempt: int, why: str) -> None:
        if self._stopping.is_set():
            return
        _log.warning("watching pods", extra=fields(namespace=self._namespace, why=why[:300]))
        self._stopping.wait(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])

    def _list(self) -> str:
        found = self._api.list_namespaced_pod(
            self._namespace, label_selector=POOL_LABEL, _request_timeout=(3.0, 30.0)
        )
        rows: Any = self._api.api_client.sanitize_for_serialization(found)
        pods = (read(body, port=self._port) for body in rows.get("items") or ())
        self._pods = {pod.name: pod for pod in pods if pod is not None}
        self._tell(listed=True)
        return str(rows["metadata"].get("resourceVersion") or "")

    def _follow(self, version: str) -> None:
        self._watch = watch = Watch()
        while not self._stopping.is_set():
            events: Any = watch.stream(
                self._api.list_namespaced_pod,
                self._namespace,
                label_selector=POOL_LABEL,
                resource_version=version,
                timeout_seconds=_WATCH_S,
                _request_timeout=(3.0, _WATCH_S + 10),
            )
            for event in events:
                body = event["raw_object"]
                version = body["metadata"].get("resourceVersion") or version
                self._one(event["type"], body)
                if self._stopping.is_set():
                    return

    def _one(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        name, pod = body["metadata"]["name"], read(body, port=self._port)
        before = self._pods.get(name)
        if kind == "DELETED" or pod is None:
            self._pods.pop(name, None)
            pod = None
        else:
            self._pods[name] = pod
        if pod != before:
            self._tell()

    def _tell(self, *, listed: bool = False) -> None:
        pods = tuple(self._pods.values())
        loop = self._loop
        if loop is None or loop.is_closed() or self._stopping.is_set():
            return
        loop.call_soon_threadsafe(self._take, pods, listed)

    def _take(self, pods: tuple[Pod, ...], listed: bool) -> None:
        self._changed(pods)
        if listed:
            self.listed.set()
