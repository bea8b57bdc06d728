"""What a scope handle knows without asking: its address and the newest version seen. Sans IO.

Owns the parts that :class:`retire.client.Scope` and :class:`retire.client.AsyncScope` share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retire.client import calls
from retire.client.errors import StreamCorrupt, Superseded
from retire.client.reading import read_receipt
from retire.client.views import Transition, scope_info_of
from retire.protocol.errors import InvalidField
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retire.client.floor import VersionFloor
    from retire.client.views import Reply, ScopeInfo


class ScopeHandle:
    """Address and version of a scope; every handle of one client and scope shares the version."""

    def __init__(self, address: calls.Address, floor: VersionFloor) -> None:
        self._address = address
        self._floor = floor

    @property
    def name(self) -> str:
        """The scope's name."""
        return self._address.scope

    @property
    def version(self) -> Version | None:
        """The newest version this client has seen; None: it has not asked yet."""
        return self._floor.version

    @property
    def dropped(self) -> int:
        """Chunks of an older version that arrived late and were refused."""
        return self._floor.dropped

    def headers(self, version: Version | None = None) -> dict[str, str]:
        """The tag for any other HTTP client: ``openai ... extra_headers=scope.headers()``.

        InvalidField when the scope's name is not ASCII, which most clients cannot put in a header.
        """
        if not self.name.isascii():
            raise InvalidField("scope", self.name, "ASCII to be sent by another HTTP client")
        return self._address.headers(version)

    def admits(self, version: Version | str) -> bool:
        """Whether a chunk of ``version``, read by another client, may still be used."""
        return self._floor.admits(Version.parse(version) if isinstance(version, str) else version)

    def _seen_info(self, body: Mapping[str, Any]) -> ScopeInfo:
        info = scope_info_of(body)
        self._floor.raise_to(info.version)
        return info

    def _seen_reply(self, reply: Reply) -> Reply:
        # A whole answer is delivered at once: a late one is an error of the call.
        if not self._floor.admits(reply.version):
            raise stale(reply.version, self._floor)
        return reply

    def _seen_transition(self, body: Mapping[str, Any]) -> Transition:
        receipt = read_receipt(body["receipt"]) if body.get("receipt") else None
        stated = body.get("version")
        if receipt is None and not isinstance(stated, str):
            raise StreamCorrupt(f"neither a receipt nor a version: {dict(body)}")
        version = receipt.to_version if receipt is not None else Version.parse(str(stated))
        self._floor.raise_to(version)
        return Transition(version, receipt, body)


def stale(version: Version, floor: VersionFloor) -> Superseded:
    """The error for an answer that came after a newer version was acknowledged."""
    return Superseded(version, floor.version, None)


def infos_of(body: Mapping[str, Any]) -> tuple[ScopeInfo, ...]:
    """The scopes of ``GET /v1/scopes``."""
    scopes: Sequence[Mapping[str, Any]] = body.get("scopes") or body.get("data") or ()
    return tuple(scope_info_of(item) for item in scopes)
