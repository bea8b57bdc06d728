"""The gRPC edge: sockets, the Node service, health. Converts, calls the node, converts back.

Must never decide anything about versions, and never touch the registry or the mailbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import stat
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from retire.protocol.errors import InvalidField, RetireError
from retire.sidecar import convert, lane, status
from retire.sidecar.access import Access
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.pb import node_pb2_grpc
from retire.sidecar.tls import Certificates
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from retire.sidecar.config import Settings
    from retire.sidecar.links import Link
    from retire.sidecar.node import Node

_log = logging.getLogger(names.LOGGER_SIDECAR)
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing from the type stubs
_OPTIONS = (
    ("grpc.max_receive_message_length", 4 * 2**20),  # a 1 MB scope name must reach its own error
    ("grpc.so_reuseport", 0),
)
SERVICE = "retire.node.v1.Node"


def _translated(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Errors of the tree become a status with ``retire-error-bin``, for a unary method."""

    @functools.wraps(method)
    async def wrapper(self: NodeService, request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            self.access.check(method.__name__, context)
            return await method(self, request, context)
        except RetireError as error:
            await _abort(context, error)

    return wrapper


def _translated_stream(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
    """The same for a streaming method."""

    @functools.wraps(method)
    async def wrapper(self: NodeService, request: Any, context: grpc.aio.ServicerContext) -> None:
        try:
            self.access.check(method.__name__, context)
            async for message in method(self, request, context):
                await context.write(message)
        except RetireError as error:
            await _abort(context, error)

    return wrapper


async def _abort(context: grpc.aio.ServicerContext, error: RetireError) -> None:
    metadata = ((status.METADATA_KEY, status.encode(error)),)
    await context.abort(status.status_of(error), str(error), trailing_metadata=metadata)


class NodeService(node_pb2_grpc.NodeServicer):
    """One method per RPC of ``node.proto``; every one a conversion and a call."""

    def __init__(self, node: Node, access: Access) -> None:
        self._node = node
        self.access = access

    @_translated
    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        """Register and join a scope; known scopes answer from memory."""
        del context
        key = convert.key_from(request.key)
        version = convert.version_from(request.version) if request.HasField("version") else None
        return await self._node.join(key, version, request.parent or None)

    @_translated_stream
    async def Supersede(self, request: pb.SupersedeRequest, context: Any) -> AsyncIterator[Any]:
        """Stream committed, unpublishable, fenced."""
        del context
        async for event in self._node.supersede(request):
            yield event

    @_translated
    async def Cancel(self, request: pb.ScopeRequest, context: Any) -> pb.TransitionReply:
        """Terminal transition; answers with its receipt."""
        del context
        return await self._node.cancel(request)

    @_translated
    async def Pause(self, request: pb.ScopeRequest, context: Any) -> pb.TransitionReply:
        """Take no new work; authority stays."""
        del context
        return await self._node.pause(request)

    @_translated
    async def Resume(self, request: pb.ScopeRequest, context: Any) -> pb.TransitionReply:
        """Undo a pause."""
        del context
        return await self._node.resume(request)

    @_translated
    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.ScopeView:
        """One scope, with live requests asked of the engines."""
        del context
        return await self._node.inspect(convert.key_from(request.key))

    @_translated
    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:
        """Every scope this node knows, from memory."""
        del context
        return self._node.list_scopes(request.tenant)

    @_translated_stream
    async def WatchTransitions(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[Any]:
        """Transitions from a sequence number on, without end."""
        del context
        async for record in self._node.watch(request.tenant, after=request.after):
            yield record

    @_translated
    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        """The completed receipt of a Supersede that an API process drove."""
        del context
        self._node.report(request)
        return pb.ReportReply()

    @_translated
    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        """Lease, term, gates, readiness."""
        del request, context
        return self._node.status()

    @_translated
    async def Warm(self, request: pb.WarmRequest, context: Any) -> pb.WarmReply:
        """Compute the KV of a context, so that the successor finds it."""
        return await self._node.warm(request, left_s=context.time_remaining())

    @_translated
    async def Authenticate(
        self, request: pb.AuthenticateRequest, context: Any
    ) -> pb.AuthenticateReply:
        """Whom a bearer token stands for."""
        del context
        return await self._node.authenticate(request.token)

    async def Attach(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """The link of an API process, over the Unix socket only."""
        del request_iterator
        try:
            hello = await self._hello(context)
        except RetireError as error:
            await _abort(context, error)
            return
        link = self._node.attach(hello)
        writer = asyncio.create_task(_pump(link, context))
        try:
            while (report := await context.read()) is not _EOF:
                self._node.links.receive(link, report)
        finally:
            writer.cancel()
            self._node.detach(link)

    async def _hello(self, context: grpc.aio.ServicerContext) -> pb.Hello:
        self.access.check("Attach", context)
        first = await context.read()
        if first is _EOF or first.WhichOneof("report") != "hello":
            raise InvalidField("report.hello", None, "the first message of an Attach stream")
        if not first.hello.gate:
            raise InvalidField("hello.gate", "", "a name unique to this process start")
        return first.hello


async def _pump(link: Link, context: grpc.aio.ServicerContext) -> None:
    """Write queued commands; a broken stream is noticed by the reader."""
    with contextlib.suppress(grpc.aio.UsageError, asyncio.InvalidStateError):
        while True:
            await context.write(await link.next_command())


class Server:
    """The listening sockets and the health of one node."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._health = HealthServicer()
        self._server = grpc.aio.server(options=_OPTIONS)
        self._lanes: asyncio.Server | None = None
        self.port: int | None = None  # bound TCP port, once started with ``listen``
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        access = Access(settings.tls_clients if settings.tls else None)
        node_pb2_grpc.add_NodeServicer_to_server(NodeService(node, access), self._server)

    async def start(self) -> None:
        """Listen. Raises InvalidField when the socket's folder is not this user's alone."""
        path = self._settings.socket
        own_folder(path.parent)
        path.unlink(missing_ok=True)  # the mailbox lock proves that no live sidecar owns it
        previous = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{path}")
            if self._settings.listen is not None:
                self.port = self._bind(self._settings.listen)
            await self._server.start()
        finally:
            os.umask(previous)
        self._lanes = await lane.listen(self._node.links, self._settings.lane)
        await self.set_serving(False)

    async def set_serving(self, serving: bool) -> None:
        """Health of the server ("") and of the Node service."""
        answer = health_pb2.HealthCheckResponse
        state = answer.SERVING if serving else answer.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, state)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones end within ``grace_s``, remove the socket."""
        await self._health.enter_graceful_shutdown()
        if self._lanes is not None:
            self._lanes.close()
        await self._server.stop(grace_s)
        for path in (self._settings.socket, self._settings.lane):
            path.unlink(missing_ok=True)

    def _bind(self, listen: str) -> int:
        tls = self._settings.tls
        if tls is None:
            return self._server.add_insecure_port(listen)
        clients = ",".join(self._settings.tls_clients)
        _log.info("TCP with mutual TLS", extra=fields(listen=listen, clients=clients))
        return self._server.add_secure_port(listen, Certificates(tls).credentials())


def own_folder(folder: Path) -> None:
    """Make the folder 0700, or refuse one that another user could have prepared."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidField("RETIRE_RUN_DIR", str(folder), "a folder that belongs to this user")
    if found.st_mode & 0o077:
        raise InvalidField("RETIRE_RUN_DIR", str(folder), "closed to others (chmod 700)")
