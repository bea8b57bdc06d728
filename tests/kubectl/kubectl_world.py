"""The plugin as a process sees it, an operator's answers, and objects to draw."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console, RenderableType

from e2e.api import ApiError
from retire_operator.kubectl.app import main

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "RETIRE_UPDATE_SNAPSHOTS"
NOW_S = 1_796_000_000.0  # 2026-11-30T00:53:20Z


def plain(shown: RenderableType, *, width: int = 160) -> str:
    """As a pipe would get it, without blanks at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def check_snapshot(name: str, text: str) -> None:
    """Equal to the file; written when RETIRE_UPDATE_SNAPSHOTS is set."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def receipt(to: int = 4, **said: Any) -> dict[str, Any]:
    """A line of status.receipts."""
    return {
        "kind": "supersede",
        "by": "revision",
        "at": "2026-11-30T00:50:00Z",
        "fromVersion": f"1.{to - 1}",
        "toVersion": f"1.{to}",
        "traceId": f"4bf92f3577b34da6a3ce929d0e0e{to:04d}",
        "commitMs": 1.94,
        "unpublishableMs": 4.81,
        "fenceMs": 19.2,
        "residualMs": 11.5,
        "gates": 3,
        "gatesLeaseEnded": 1,
        "retiredRequests": 2,
        "inheritableTokens": 640,
        "certifiedTokens": 624,
        "pinnedBlocks": 39,
        "stoppedBy": "token",
        **said,
    }


def scope(name: str = "plan", *, spec: Any = None, status: Any = None, **meta: Any) -> Any:
    """A ServingScope as the API server holds it."""
    return {
        "apiVersion": "serving.retire.dev/v1alpha1",
        "kind": "ServingScope",
        "metadata": {
            "name": name,
            "namespace": "acme",
            "generation": 2,
            "resourceVersion": "41",
            "creationTimestamp": "2026-11-30T00:00:00Z",
            **meta,
        },
        "spec": {"epoch": 4, "paused": False, "cancelled": False, **(spec or {})},
        "status": status or {},
    }


def ready(status: str = "True", reason: str = "Current", message: str = "") -> dict[str, Any]:
    """A Ready condition."""
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-30T00:50:00Z",
    }


class Plugin:
    """Runs a command line; exit status, stdout and stderr come back."""

    def __init__(self, cluster: Any, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self.namespace, self._capsys = cluster, namespace, capsys
        self.kubeconfig = str(cluster.kubeconfig)
        self.path = f"/apis/serving.retire.dev/v1alpha1/namespaces/{namespace}/servingscopes"

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        line = ["--kubeconfig", self.kubeconfig, "-n", self.namespace, *arguments]
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line)
        out, err = self._capsys.readouterr()
        out = "".join(f"{line.rstrip()}\n" for line in out.splitlines())
        return int(ended.value.code or 0), out, err

    def create(self, name: str = "plan", **spec: Any) -> dict[str, Any]:
        body = scope(name, spec={"epoch": 0, **spec})
        body["metadata"] = {"name": name, "namespace": self.namespace}
        return self.cluster.api.create(self.path, body)

    def get(self, name: str = "plan") -> dict[str, Any]:
        return self.cluster.api.get(f"{self.path}/{name}")

    def set_status(self, name: str = "plan", **status: Any) -> dict[str, Any]:
        return self.cluster.api.merge(f"{self.path}/{name}/status", {"status": status})


class Answering:
    """Watches a namespace and writes the status that an operator would write."""

    def __init__(
        self,
        cluster: Any,
        namespace: str,
        *,
        answer: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
    ) -> None:
        self._api = cluster.api
        self._path = f"/apis/serving.retire.dev/v1alpha1/namespaces/{namespace}/servingscopes"
        self._answer = answer or obey
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = False

    def start(self) -> Answering:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            try:
                for event in self._api.watch(self._path, timeoutSeconds=1):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._one(event["object"])
            except ApiError as error:
                assert error.code == httpx.codes.TOO_MANY_REQUESTS  # the CRD is still new

    def _one(self, body: dict[str, Any]) -> None:
        status = self._answer(body)
        if status is None:
            return
        status["observedGeneration"] = body["metadata"]["generation"]
        try:
            path = f"{self._path}/{body['metadata']['name']}/status"
            self._api.merge(path, {"status": status})
        except (ApiError, httpx.TransportError):
            return  # deleted meanwhile


def obey(body: dict[str, Any]) -> dict[str, Any] | None:
    """Everything happens at once, with a receipt."""
    spec, status = body["spec"], body.get("status") or {}
    if status.get("observedGeneration") == body["metadata"]["generation"]:
        return None
    epoch = max(spec["epoch"], int(status.get("epoch") or 0))
    receipts = list(status.get("receipts") or ())
    if "version" in status and epoch > status["epoch"]:
        receipts.insert(0, receipt(epoch))
    if spec["cancelled"] and status.get("phase") != "Cancelled":
        epoch += 1
        receipts.insert(0, receipt(epoch, kind="cancel"))
    phase = "Cancelled" if spec["cancelled"] else "Paused" if spec["paused"] else "Active"
    return {
        "version": f"1.{epoch}",
        "term": 1,
        "epoch": epoch,
        "phase": phase,
        "receipts": receipts[:8],
        "conditions": [ready()],
    }
