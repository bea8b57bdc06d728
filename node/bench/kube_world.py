"""What ``bench.kube`` measures: a real API server, Valkey, two nodes without an engine, operators.

Owns the objects, the clients and the clocks of a revision. Node pods are objects only; their
sidecars are processes under mutual TLS with the term Lease. Must never compute a figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from bench.kube_gates import RecordingGate, switched_s, until
from e2e.binaries import binary
from e2e.cluster import run
from e2e.fixtures import CRD, CRD_PATH
from e2e.installation import Lab, condition, stop
from e2e.processes import free_port
from e2e.waiting import wait_condition
from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from e2e.cluster import ExistingCluster

NODES: Final = ("node-0", "node-1")
LIMIT_S: Final = 120.0  # of anything that is waited for; a revision takes some 20 ms
CLIENTS: Final = 16  # requests to the API server side by side
_SCOPES: Final = "/apis/serving.retire.dev/v1alpha1/namespaces/{}/servingscopes"
_WRITES: Final = re.compile(
    r'^apiserver_request_total\{(?=[^}]*resource="servingscopes")'
    r'(?=[^}]*verb="(?:APPLY|PATCH|PUT|POST|DELETE)")[^}]*\} (\S+)$',
    re.MULTILINE,
)


class World:
    """One installation; enter it, then add operators."""

    def __init__(self, cluster: ExistingCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.lab = Lab(cluster, namespace)
        self.gates: tuple[RecordingGate, ...] = ()
        self.epochs: dict[str, int] = {}  # what was asked for last, by scope
        self._health: dict[int, str] = {}  # an operator's pid -> where it says that it lives
        self._threads = ThreadPoolExecutor(CLIENTS)

    async def __aenter__(self) -> World:
        await self.lab.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown()
        await self.lab.__aexit__()

    async def populate(self) -> None:
        """An operator, which opens the registry, and the nodes."""
        operator = self.operator()
        for name in NODES:
            await self.lab.node(name, engine=RecordingGate, RETIRE_SLOTS="4096", RETIRE_HISTORY="")
        self.gates = tuple(node.engine for node in self.lab.nodes.values())
        await self.until_knows(operator, scopes=0)

    def key(self, scope: str) -> ScopeKey:
        """The scope of an object."""
        return ScopeKey(self.namespace, scope)

    # -- operators

    def operator(self) -> subprocess.Popen[bytes]:
        """Start one, with the settings of the chart."""
        listen = f"127.0.0.1:{free_port()}"
        made = self.lab.operator(RETIRE_RESYNC_S="30", RETIRE_HTTP_LISTEN=listen)
        self._health[made.pid] = f"http://{listen}/healthz"
        return made

    async def until_knows(self, operator: subprocess.Popen[bytes], *, scopes: int) -> None:
        """Until it watches: it says so itself, at most every ten seconds anew."""
        end_s, answer = time.monotonic() + LIMIT_S, None
        async with httpx.AsyncClient() as http:
            while answer != {"scopes": scopes, "nodes": len(NODES), "ready": len(NODES)}:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"the operator does not work; its health: {answer}")
                await asyncio.sleep(0.1)
                with contextlib.suppress(httpx.TransportError):
                    reply = await http.get(self._health[operator.pid])
                    answer = reply.json().get("operator") if reply.is_success else reply.text

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        """Operators that run."""
        return [operator for operator in self.lab.operators if operator.poll() is None]

    async def stop_operators(self) -> None:
        """End every one cleanly."""
        for operator in self.running:
            status = await asyncio.to_thread(stop, operator)
            assert status == 0, f"the operator ended with status {status}"

    # -- revisions

    async def open(self, scopes: Sequence[str], *, by_kubectl: bool = False) -> None:
        """Make objects; ready, and with a gate that holds each on every node."""
        if by_kubectl:
            for scope in scopes:
                await self.kubectl_apply(scope, epoch=0)
        else:
            await self.in_threads(lambda scope: self.apply(scope, epoch=0), scopes)
        self.epochs |= dict.fromkeys(scopes, 0)
        await self.until_settled(scopes)
        for gate in self.gates:
            await gate.take(self.key(scope) for scope in scopes)

    def apply(self, scope: str, *, epoch: int) -> float:
        """Server-side apply by a client that runs already; when the request was sent."""
        began_s = time.perf_counter()
        self.lab.apply(scope, epoch=epoch)
        return began_s

    async def kubectl_apply(self, scope: str, *, epoch: int) -> tuple[float, float]:
        """``kubectl apply -f``: when it was started, and when it ended."""
        manifest = self.lab.folder / f"{scope}.json"
        metadata = {"name": scope, "namespace": self.namespace}
        body = {
            "apiVersion": "serving.retire.dev/v1alpha1",
            "kind": "ServingScope",
            "metadata": metadata,
            "spec": {"epoch": epoch},
        }
        manifest.write_text(json.dumps(body))
        return await self.kubectl("apply", "-f", str(manifest))

    async def kubectl(self, *arguments: str) -> tuple[float, float]:
        """Run kubectl: when it was started, and when it ended."""
        return await asyncio.to_thread(self._kubectl, *arguments)

    def _kubectl(self, *arguments: str) -> tuple[float, float]:
        cache = {"KUBECACHEDIR": str(self.lab.folder / "kubectl")}
        argv = [str(binary("kubectl")), *arguments]
        began_s = time.perf_counter()
        # In a thread, for this starts by vfork: gRPC's fork handlers would end a forked child.
        run(argv, env=self.cluster.env | cache, limit_s=LIMIT_S)
        return began_s, time.perf_counter()

    def next_epoch(self, scope: str) -> int:
        """Counts what is asked for."""
        self.epochs[scope] += 1
        return self.epochs[scope]

    async def until_switched(self, scope: str, epoch: int) -> float:
        """When the last gate had switched to the epoch."""
        what = f"UNPUBLISHABLE of {scope} at epoch {epoch}"
        await until(what, lambda: switched_s(self.gates, scope, epoch) is not None, LIMIT_S)
        found = switched_s(self.gates, scope, epoch)
        assert found is not None
        return found

    async def until_settled(self, scopes: Sequence[str]) -> None:
        """Until each object says that it is ready at what was asked for, so that nothing of one
        revision runs beside the next."""
        left = set(scopes)
        end_s = time.monotonic() + LIMIT_S
        while left:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(left)} scopes are not settled, such as {min(left)}")
            bodies = await self.objects(scopes)
            left = {s for s in left if not _settled(bodies.get(s), self.epochs[s])}
            if left:
                await asyncio.sleep(0.02)

    # -- what the API server shows

    async def objects(self, scopes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Bodies by name: one by one for a few, else the list."""
        path = _SCOPES.format(self.namespace)
        if len(scopes) < 3:
            found = await self.in_threads(lambda s: self.cluster.api.get(f"{path}/{s}"), scopes)
        else:
            found = (await asyncio.to_thread(self.cluster.api.get, path))["items"]
        return {body["metadata"]["name"]: body for body in found}

    def writes(self) -> int:
        """Write requests for ServingScopes that the API server answered since it started: those
        that changed nothing too."""
        return int(sum(float(n) for n in _WRITES.findall(self.cluster.api.text("/metrics"))))

    async def in_threads(self, call: Any, items: Sequence[Any]) -> list[Any]:
        """``call(item)`` for each, CLIENTS at a time."""
        loop = asyncio.get_running_loop()
        return list(
            await asyncio.gather(*(loop.run_in_executor(self._threads, call, i) for i in items))
        )


def install_crd(cluster: ExistingCluster) -> None:
    """Apply it, and wait until it is served."""
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    wait_condition(cluster.api, CRD_PATH, "Established")


def _settled(body: dict[str, Any] | None, epoch: int) -> bool:
    status = (body or {}).get("status") or {}
    version = str(status.get("version", ""))
    return version.endswith(f".{epoch}") and condition(status, "Ready")[0] == "True"


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # USER_HZ is 100 on Linux
