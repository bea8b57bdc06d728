"""The HTTP listener: /livez and /readyz, and whatever pages are handed in. Plain, read-only, off
unless RETIRE_HTTP_LISTEN is set.

Runs in the sidecar's own loop: that it answers is the proof of life. Must never change anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retire.protocol.errors import InvalidField
from retire.sidecar.config import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from retire.telemetry.metrics import Metrics

_BACKLOG: Final = 128
_GRACE_S: Final = 1


def probes(not_ready_reason: Callable[[], str]) -> list[BaseRoute]:
    """What the kubelet asks. ``not_ready_reason``: empty when the node may serve."""

    async def livez(request: Request) -> JSONResponse:
        del request
        return JSONResponse({"live": True})

    async def readyz(request: Request) -> JSONResponse:
        del request
        reason = not_ready_reason()
        if reason:
            return JSONResponse({"ready": False, "reason": reason}, status_code=503)
        return JSONResponse({"ready": True})

    return [Route("/livez", livez), Route("/readyz", readyz)]


def exposition(metrics: Metrics) -> BaseRoute:
    """GET /metrics: Prometheus' text, or OpenMetrics for who accepts it."""

    async def answer(request: Request) -> Response:
        body, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return Route("/metrics", answer)


class _Quiet(uvicorn.Server):
    """Signals are the process's: uvicorn would take SIGTERM for itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Pages:
    """One HTTP server in the running loop."""

    def __init__(
        self, listen: str, routes: Sequence[BaseRoute], *, variable: str = "RETIRE_HTTP_LISTEN"
    ) -> None:
        self._listen, self._variable = listen, variable
        config = uvicorn.Config(
            Starlette(routes=list(routes)),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Quiet(config)
        self._serving: asyncio.Task[None] | None = None
        self.port: int | None = None  # bound, once started

    async def start(self) -> None:
        """Listen. InvalidField when the address cannot be had."""
        bound = self._bind()
        self.port = bound.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]), name="pages")

    async def close(self) -> None:
        """Answer what is being asked, then close."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    def _bind(self) -> socket.socket:
        host, port = host_and_port(self._variable, self._listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server(
                (host.strip("[]"), port), family=family, backlog=_BACKLOG, reuse_port=False
            )
        except OSError as error:
            must_be = f"an address this process may listen on ({error.strerror})"
            raise InvalidField(self._variable, self._listen, must_be) from error
