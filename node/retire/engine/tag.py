"""The authority of one request, as it rides in ``SamplingParams.extra_args["retire"]``.

Owns the wire form of a tag between the API process, EngineCore and the workers (plain msgpack-able
values). Must never import vLLM: the seams do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.mailbox import SlotRef
from retire.protocol.versions import Authority, ScopeKey, Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.sidecar.pb import node_pb2 as pb

EXTRA_ARG: Final = "retire"  # key in SamplingParams.extra_args; clients may not set it


@dataclass(frozen=True, slots=True)
class Tag:
    """Who a request acts for, and the mailbox word that says whether it still may."""

    authority: Authority
    slot: SlotRef
    inherit: bool = True  # False: the contract forbids reuse; start cold

    @property
    def key(self) -> ScopeKey:
        """The scope."""
        return self.authority.key

    @property
    def version(self) -> Version:
        """The version whose execution this request is part of."""
        return self.authority.version

    def to_wire(self) -> dict[str, Any]:
        """Plain values for ``extra_args``."""
        return {
            "tenant": self.key.tenant,
            "scope": self.key.scope,
            "term": self.version.term,
            "epoch": self.version.epoch,
            "gen": self.authority.generation,
            "slot": [self.slot.index, self.slot.tenure, self.slot.stamp],
            "inherit": self.inherit,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Tag:
        """The inverse of :meth:`to_wire`."""
        key = ScopeKey(wire["tenant"], wire["scope"])
        version = Version(wire["term"], wire["epoch"])
        return cls(
            authority=Authority(key, version, wire["gen"]),
            slot=SlotRef(*wire["slot"]),
            inherit=wire.get("inherit", True),
        )

    @classmethod
    def of(cls, sampling_params: Any) -> Tag | None:
        """The tag of a request's ``SamplingParams`` (None: not a scoped request)."""
        extra = getattr(sampling_params, "extra_args", None)
        wire = extra.get(EXTRA_ARG) if extra else None
        return cls.from_wire(wire) if wire is not None else None


def slot_ref(message: pb.SlotRef) -> SlotRef:
    """The mailbox reference that the sidecar handed out."""
    return SlotRef(message.index, message.tenure, message.stamp)
