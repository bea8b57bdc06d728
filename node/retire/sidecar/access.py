"""Who may call what: the Unix socket is for this pod's processes, TCP for named certificates.

Pure: decides from what the transport says of the peer. Must never read a token or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import Forbidden

if TYPE_CHECKING:
    import grpc

# What only a process of this host can mean: gates, their receipts, and whose token it was given.
HOST_ONLY: Final = frozenset(("Attach", "Authenticate", "Join", "Report"))
_PEER_NAMES: Final = "peer_dns"  # gRPC's word for the DNS names of the peer's certificate


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of one server. ``clients``: DNS names that may call; None: TCP is loopback only."""

    clients: tuple[str, ...] | None

    def check(self, method: str, context: grpc.aio.ServicerContext) -> None:
        """Forbidden unless this peer may call ``method``."""
        peer = context.peer()
        if peer.startswith("unix:"):
            return
        if method in HOST_ONLY:
            raise Forbidden(f"{method} must be called over the node's Unix socket, not from {peer}")
        if self.clients is not None:
            self._check_names(peer, context.auth_context() or {})

    def _check_names(self, peer: str, auth: Any) -> None:
        names = [name.decode("utf-8", "replace") for name in auth.get(_PEER_NAMES, ())]
        if not set(names) & set(self.clients or ()):
            shown = ", ".join(names[:4]) or "no DNS name"
            raise Forbidden(
                f"the certificate of {peer} is of {shown}; RETIRE_TLS_CLIENTS allows"
                f" {', '.join(self.clients or ())}"
            )
