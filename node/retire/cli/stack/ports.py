"""Whether a TCP address is free, asked before anything is started."""

from __future__ import annotations

import socket
from typing import Final

from retire.protocol.errors import InvalidField, RetireError

LOOPBACK: Final = "127.0.0.1"


class PortBusy(RetireError):
    """Someone else listens there."""

    code = "port_busy"


def claim(host: str, port: int) -> int:
    """``port`` if it can be bound, a free one for 0. PortBusy or InvalidField otherwise."""
    if not 0 <= port <= 65535:
        raise InvalidField("--port", port, "0 to 65535 (0: any free port)")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise InvalidField("--host", host, f"an address of this host ({error.strerror})") from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise PortBusy(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --port (0: any)"
            ) from error
        return probe.getsockname()[1]


def claim_page(port: int | None, above: int) -> int:
    """The live page's port on loopback: as asked, else the one above the API's, else a free one."""
    if port is not None:
        return claim(LOOPBACK, port)
    try:
        return claim(LOOPBACK, above + 1)
    except (PortBusy, InvalidField):
        return claim(LOOPBACK, 0)
