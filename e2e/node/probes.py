"""The kubelet's probes: exec, httpGet, tcpSocket, grpc. One check each, no schedule.

Must never decide what a failure means: that is the container's life (``containers.py``).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    Execute = Callable[[Sequence[str], float], Awaitable[tuple[int, str]]]

Object = dict[str, Any]


class ProbeFailed(Exception):
    """What the event of a failed probe says."""


async def check(probe: Object, *, address: str, ports: Mapping[str, int], execute: Execute) -> None:
    """Returns when the probe succeeds; ProbeFailed with the reason otherwise."""
    timeout_s = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        code, output = await execute(probe["exec"]["command"], timeout_s)
        if code:
            raise ProbeFailed(f"exit {code}: {output[-500:]}")
    elif "httpGet" in probe:
        await _http(probe["httpGet"], address, ports, timeout_s)
    elif "tcpSocket" in probe:
        await _tcp(probe["tcpSocket"], address, ports, timeout_s)
    elif "grpc" in probe:
        await _grpc(probe["grpc"], address, timeout_s)
    else:
        raise ProbeFailed(f"unknown kind of probe: {sorted(probe)}")


def port_number(port: int | str, ports: Mapping[str, int]) -> int:
    """A number, or a container port's name."""
    if isinstance(port, int):
        return port
    if port in ports:
        return ports[port]
    raise ProbeFailed(f"no container port is called {port!r}")


async def http_get(
    action: Object, address: str, ports: Mapping[str, int], timeout_s: float
) -> httpx.Response:
    """As a probe and a preStop hook send it; certificates are not verified, as the kubelet's."""
    scheme = action.get("scheme", "HTTP").lower()
    host, port = action.get("host", address), port_number(action["port"], ports)
    url = f"{scheme}://{host}:{port}{action.get('path', '/')}"
    headers = {one["name"]: one["value"] for one in action.get("httpHeaders", [])}
    # The context is made only where it is needed: it reads the system's certificates.
    verify = ssl._create_unverified_context() if scheme == "https" else False
    async with httpx.AsyncClient(verify=verify, timeout=timeout_s, trust_env=False) as client:
        return await client.get(url, headers=headers)


async def _http(action: Object, address: str, ports: Mapping[str, int], timeout_s: float) -> None:
    try:
        response = await http_get(action, address, ports, timeout_s)
    except httpx.HTTPError as error:
        raise ProbeFailed(f"{type(error).__name__}: {error}") from error
    if not 200 <= response.status_code < 400:
        raise ProbeFailed(f"HTTP probe failed with statuscode: {response.status_code}")


async def _tcp(action: Object, address: str, ports: Mapping[str, int], timeout_s: float) -> None:
    host, port = action.get("host", address), port_number(action["port"], ports)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        raise ProbeFailed(f"dial {host}:{port}: {error or 'timeout'}") from error
    writer.close()


async def _grpc(action: Object, address: str, timeout_s: float) -> None:
    def ask() -> int:
        with grpc.insecure_channel(f"{address}:{action['port']}") as channel:
            request = health_pb2.HealthCheckRequest(service=action.get("service", ""))
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its methods are made at run time
            return stub.Check(request, timeout=timeout_s).status

    try:
        status = await asyncio.to_thread(ask)
    except grpc.RpcError as error:
        raise ProbeFailed(f"grpc: {error}") from error
    if status != health_pb2.HealthCheckResponse.SERVING:
        raise ProbeFailed(f"grpc: status {status} is not SERVING")
