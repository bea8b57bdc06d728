"""``retire-operator``: one operator process, from environment to clean shutdown.

Builds every part and wires them; the only module that knows them all. 2 when the configuration is
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import kopf
from kubernetes.client import CoordinationV1Api
from kubernetes.config import ConfigException

from retire.protocol.errors import InvalidField, RetireError
from retire.protocol.history import RegistryRebuilt
from retire.registry.client import AsyncRegistry
from retire.registry.settings import RegistrySettings, where
from retire.sidecar.client import NodeClient
from retire.telemetry import logs, names
from retire.telemetry.history import History
from retire.telemetry.logs import fields
from retire.telemetry.tracing import Tracer
from retire_operator import handlers
from retire_operator.apply import Executor, Targets
from retire_operator.events import Recorder
from retire_operator.gathering import Gatherer
from retire_operator.kube import Kube, load_configuration
from retire_operator.metrics import OperatorMetrics
from retire_operator.mirror import Mirror
from retire_operator.namespaces import Namespaces
from retire_operator.nodes import SidecarPool
from retire_operator.observe import Observer, Sources
from retire_operator.pods import PodInformer
from retire_operator.reconcile import Reconciler
from retire_operator.registry_guard import GuardSettings, RegistryGuard
from retire_operator.resource import Ref, ref_of
from retire_operator.settings import Settings
from retire_operator.store import ScopeStore
from retire_operator.tenants import QuotaBook, TenantQuotas
from retire_operator.term import KubernetesLease, TermLease
from retire_operator.work import WorkQueue

if TYPE_CHECKING:
    from retire.sidecar.pages import Pages
    from retire.sidecar.pb import node_pb2 as pb

_log = logging.getLogger("retire.operator")
_CRD_POLL_S: Final = 2.0
_STALLED_RESYNCS: Final = 10  # resyncs that may be missed before the process counts as stuck


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 2 when the configuration is refused."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = Settings.from_env()
        logs.setup(logs.format_of(arguments, settings.log_format))
        handlers.quiet_logs()
        asyncio.run(serve(settings))
    except InvalidField as error:
        sys.stderr.write(f"retire operator: {error}\n")
        return 2
    except ConfigException as error:
        sys.stderr.write(f"retire operator: no cluster to talk to; set KUBECONFIG ({error})\n")
        return 2
    return 0


async def serve(settings: Settings) -> None:
    """Run one operator until a signal comes."""
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    operator = Operator(settings, Kube(load_configuration()))
    try:
        await operator.run(stopping)
    finally:
        await operator.close()


def stop_on_signals(stopping: asyncio.Event) -> None:
    """SIGTERM and SIGINT set ``stopping``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)


class Operator:
    """Every part of one operator."""

    def __init__(self, settings: Settings, kube: Kube) -> None:
        self._settings, self._kube = settings, kube
        self._resynced_s = time.monotonic()
        self._history = History.from_env()
        self.tracer = Tracer.from_env(names.SERVICE_OPERATOR)
        self.store, self.mirror = ScopeStore(), Mirror()
        self.pool = SidecarPool(
            _connector(settings),
            on_record=self._on_record,
            on_change=self._on_pool,
            call_timeout_s=settings.call_timeout_s,
        )
        self.registry = self._connect(False)
        self.namespaces = Namespaces(kube, only=settings.watch_namespaces, clock=time.monotonic)
        self._wire_guard()
        self.pods = PodInformer(
            kube.core,
            namespace=settings.node_namespace,
            port=settings.sidecar_port,
            changed=self.pool.observe,
        )
        self.recorder = Recorder(kube, wall_s=time.time)
        self.metrics = OperatorMetrics()
        handle = self.metrics.timed(self._reconciler())
        self.queue: WorkQueue[Ref] = WorkQueue(handle, workers=settings.workers)
        self.metrics.watch(self.store, self.pool, self.guard, self.queue)

    def _wire_guard(self) -> None:
        settings, kube = self._settings, self._kube
        book = QuotaBook(self._cached_bodies, self.namespaces.all)
        lease = KubernetesLease.named(CoordinationV1Api(kube.client), settings.term_lease)
        self.guard = RegistryGuard(
            TermLease(lease, identity=settings.identity),
            Gatherer(self._bodies, lambda: self.pool),
            book,
            connect=self._connect,
            clock=time.monotonic,
            settings=GuardSettings(settle_s=settings.lease_s),
            on_written=self._note_rebuild,
        )
        self.tenants = TenantQuotas(book, self.registry, self.guard, clock=time.monotonic)

    def _note_rebuild(self, tenant: str, term: int) -> None:
        if self._history.on:
            self._history.write(RegistryRebuilt(time.monotonic_ns(), tenant, term))

    def _connect(self, create_when_empty: bool) -> AsyncRegistry:
        return AsyncRegistry(
            self._settings.registry_url,
            RegistrySettings(
                durability=self._settings.registry_durability, create_when_empty=create_when_empty
            ),
        )

    def _reconciler(self) -> Reconciler:
        sources = Sources(
            objects=self._kube,
            namespaces=self.namespaces,
            registry=self.registry,
            pool=self.pool,
            guard=self.guard,
            tenants=self.tenants,
            store=self.store,
            mirror=self.mirror,
        )
        targets = Targets(
            writes=self._kube,
            registry=self.registry,
            pool=self.pool,
            guard=self.guard,
            store=self.store,
            mirror=self.mirror,
            recorder=self.recorder,
        )
        return Reconciler(
            self.store,
            Observer(sources, finalizer_timeout_s=self._settings.finalizer_timeout_s),
            Executor(targets, wall_s=time.time, tracer=self.tracer),
            self.recorder,
            wall_s=time.time,
            fetch=self._kube.get_scope,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Until ``stopping``, or until a part that must live ends."""
        _log.info(
            "starting",
            extra=fields(
                registry=where(self._settings.registry_url).removeprefix("at "),
                nodes=self._settings.node_namespace,
                scopes=", ".join(self._settings.watch_namespaces) or "every namespace",
            ),
        )
        pages = await self._pages()
        self.pods.start()
        stop = asyncio.create_task(stopping.wait(), name="stop")
        parts = [
            asyncio.create_task(part, name=name)
            for name, part in (
                ("guard", self._guard()),
                ("queue", self._work()),
                ("resync", self._resync()),
                ("events", self.recorder.run()),
                ("kopf", self._watch(stopping)),
            )
        ]
        done, _ = await asyncio.wait([stop, *parts], return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        kopf_task = parts[-1]
        for task in (stop, *parts[:-1]):
            task.cancel()
        await asyncio.gather(stop, *parts[:-1], return_exceptions=True)
        self.pods.stop()
        await self.pool.close()  # kopf waits 5 s for tasks that were begun since it runs
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(kopf_task, return_exceptions=True), 10.0)
        await asyncio.gather(stop, *parts, return_exceptions=True)
        for task in done:
            if task is not stop and not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError
        if pages is not None:
            await pages.close()
        _log.info("stopped")

    async def _pages(self) -> Pages | None:
        if self._settings.metrics_listen is None:
            return None
        pages = self.metrics.pages(self._settings.metrics_listen)
        await pages.start()
        return pages

    async def close(self) -> None:
        """Close every connection."""
        self.pods.stop()
        await self.pool.close()
        await self.guard.close()
        await self.registry.close()
        self._kube.close()
        self._history.close()
        self.tracer.close()

    async def _work(self) -> None:
        """Nothing is decided before the first list of pods: "no node" would be a guess."""
        await self.pods.listed.wait()
        await self.queue.run()

    async def _guard(self) -> None:
        """A rebuild rests on what the nodes hold: they must be known first."""
        await self.pods.listed.wait()
        await self.guard.run()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_s)
            self._resynced_s = time.monotonic()
            try:
                await self._list_again()
            except RetireError as error:
                _log.warning("resync without a list", extra=fields(why=error))
            for ref in self.store:
                self.queue.add(ref)

    async def _list_again(self) -> None:
        """What a watch may have lost, deletions too. An object made meanwhile is listed or seen."""
        known = set(self.store)
        bodies = await self._bodies()
        for body in bodies:
            self._on_event(None, body)
        for ref in known - {ref_of(body) for body in bodies}:
            if (gone := self.store.body(ref)) is not None:
                self._on_event("DELETED", gone)

    async def _watch(self, stopping: asyncio.Event) -> None:
        while not await self._served():
            _log.warning("the CRD servingscopes.serving.retire.dev is not installed; waiting")
            await asyncio.sleep(_CRD_POLL_S)
        namespaces = self._settings.watch_namespaces
        ours = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=handlers.registry(self._on_event, health=self.health),
            standalone=True,
            # Otherwise kopf looks for this user's name, and an image may not know its own uid.
            identity=cast("Any", self._settings.identity),
            clusterwide=not namespaces,
            namespaces=namespaces,
            liveness_endpoint=f"http://{self._settings.http_listen}/healthz",
            stop_flag=stopping,
        )
        # kopf has taken the signals: it would end itself first, and then all that runs beside it.
        stop_on_signals(stopping)
        await kopf.run_tasks(tasks, ignored=ours)

    async def _served(self) -> bool:
        try:
            return await self._kube.served()
        except RetireError as error:
            _log.warning("the API server cannot be asked", extra=fields(why=error))
            return False

    def health(self) -> Mapping[str, Any]:
        """For the liveness endpoint; raises when the loop has not resynced for long."""
        idle_s = time.monotonic() - self._resynced_s
        if idle_s > self._settings.resync_s * _STALLED_RESYNCS:
            raise RuntimeError(f"no resync for {idle_s:.0f} s")
        nodes = tuple(self.pool)
        ready = sum(node.pod.ready for node in nodes)
        return {"scopes": len(self.store), "nodes": len(nodes), "ready": ready}

    def _on_event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        ref, before = ref_of(body), self.store.desired(ref_of(body))
        if kind == "DELETED":
            gone = self.store.remove(ref)
            self.queue.forget(ref)
            if gone is not None:
                self._wake(self.store.neighbours(gone))
                if not self.store.refs(gone.key):
                    self.mirror.forget(gone.key)
            return
        opened = self._opened(body)
        if not self.store.put(body):
            if opened:
                self._wake(self.store.below(ref))
            return
        self.queue.add(ref)
        for desired in {before, self.store.desired(ref)} - {None}:
            assert desired is not None
            self._wake(self.store.neighbours(desired))

    def _opened(self, body: Mapping[str, Any]) -> bool:
        """Its children may have waited for its first version."""
        known = self.store.body(ref_of(body)) or {}
        return bool((body.get("status") or {}).get("version")) != bool(
            (known.get("status") or {}).get("version")
        )

    def _on_record(self, record: pb.TransitionRecord) -> None:
        key = self.mirror.take(record)
        for ref in self.store.refs(key):
            self.queue.add(ref)
            self._wake(self.store.below(ref))

    def _on_pool(self, pool: str) -> None:
        self._wake(self.store.in_pool(pool))

    def _wake(self, refs: Sequence[Ref]) -> None:
        for ref in refs:
            self.queue.add(ref)

    async def _cached_bodies(self) -> list[Mapping[str, Any]]:
        return [body for ref in self.store if (body := self.store.body(ref)) is not None]

    async def _bodies(self) -> list[Mapping[str, Any]]:
        """Of the API server: what a rebuild rests on must not be old."""
        names = self._settings.watch_namespaces or ("",)
        found = await asyncio.gather(*(self._kube.list_scopes(name) for name in names))
        return [body for bodies in found for body in bodies]


def _connector(settings: Settings) -> Callable[[str], NodeClient]:
    """Opens a channel to a sidecar at host:port."""
    tls, name = settings.tls, settings.tls_server_name
    if tls is None:
        return NodeClient
    return lambda address: NodeClient(address, tls=tls, server_name=name)


if __name__ == "__main__":
    sys.exit(main())
