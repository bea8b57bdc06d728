"""Who made a commit and under which contract: the text a commit carries in its ``by`` field.

The registry stores it as it is; other nodes read it from the tenant's stream, because they
fence their engines under the same contract. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from retire.protocol.contract import Contract, Equivalence, Inherit, Tier


@dataclass(frozen=True, slots=True)
class Author:
    """The committing node, its call, and what the call asked for."""

    node: str
    call: str = ""
    contract: Contract = field(default_factory=Contract)
    traceparent: str = ""

    def encode(self) -> str:
        """One line of JSON; fields at their default are left out."""
        body: dict[str, object] = {"node": self.node, "call": self.call}
        if self.contract != Contract():
            body["contract"] = {
                "equivalence": self.contract.equivalence.value,
                "inherit": self.contract.inherit.value,
                "tier": self.contract.tier.value,
                "ttl_s": self.contract.ttl_s,
                "fence_bound_ms": self.contract.fence_bound_ms,
            }
        if self.traceparent:
            body["traceparent"] = self.traceparent
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Author:
        """Read :meth:`encode`; text of another origin (an operator's tool) is taken as a node
        name.
        """
        try:
            body = json.loads(text)
            found = body.get("contract")
            contract = Contract() if found is None else _contract(found)
            return cls(body["node"], body.get("call", ""), contract, body.get("traceparent", ""))
        except (ValueError, KeyError, AttributeError, TypeError):
            return cls(text)


def _contract(body: dict[str, object]) -> Contract:
    bound = body.get("fence_bound_ms")
    return Contract(
        equivalence=Equivalence(body["equivalence"]),
        inherit=Inherit(body["inherit"]),
        tier=Tier(body["tier"]),
        ttl_s=float(str(body["ttl_s"])),
        fence_bound_ms=None if bound is None else float(str(bound)),
    )
