"""Signs and checks the certificates of one engine: the only way predecessor KV is adopted (C2).

Binds ``protocol.certificates`` to this engine's identity. Must never import vLLM.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retire.protocol.certificates import (
    AdoptionFacts,
    Certificate,
    certify,
    token_digest,
    verify,
)
from retire.protocol.contract import Contract, Equivalence, Inherit, Participant, StopReason

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from retire.engine.records import Outcome, Successor
    from retire.engine.seams.identity import EngineIdentity
    from retire.engine.tag import Tag


@dataclass(slots=True)
class Certifier:
    """Certificates under the key of one engine boot."""

    identity: EngineIdentity
    generation: int = 0  # ownership instance of the whole cache; a reset begins another

    def forbids(self, contract: Contract) -> bool:
        """Whether a contract allows no reuse on this engine (paper, section 3.1)."""
        invariant = self.identity.numerical_mode == "bi"
        return contract.inherit is Inherit.NEVER or (
            contract.equivalence is Equivalence.BATCH_INVARIANT and not invariant
        )

    def certify(
        self, request: Request, tag: Tag, outcome: Outcome, expires_s: float
    ) -> Certificate:
        """Sign what ``outcome`` lets ``request`` inherit, until ``expires_s`` (monotonic)."""
        assert outcome.chain is not None and outcome.from_version is not None
        tokens = outcome.alignment.certified_tokens
        draft = Certificate(
            key=tag.key,
            from_version=outcome.from_version,
            to_version=tag.version,
            generation=self.generation,
            fingerprint=self.identity.fingerprint,
            numerical_mode=self.identity.numerical_mode,
            tokens=tokens,
            token_digest=token_digest(request.prompt_token_ids or (), tokens),
            blocks=outcome.chain.block_ids(),
            participants=tuple(
                Participant("", self.identity.boot_id, 0, 0, group, tokens, closed=True)
                for group in range(len(outcome.chain.blocks))
            ),
            expires_ns=int(expires_s * 1e9),
        )
        return certify(draft, self.identity.key)

    def refusal(
        self, request: Request, successor: Successor, outcome: Outcome
    ) -> StopReason | None:
        """Why the certificate does not admit this request now; None: it does."""
        if outcome.certificate is None or outcome.chain is None:
            return StopReason.NO_PREDECESSOR
        if outcome.certificate.blocks != outcome.chain.block_ids():
            return StopReason.GENERATION
        facts = AdoptionFacts(
            key=successor.key,
            version=successor.version,
            generation=self.generation,
            fingerprint=self.identity.fingerprint,
            numerical_mode=self.identity.numerical_mode,
            prompt=request.prompt_token_ids or (),
            boot_ids=frozenset({self.identity.boot_id}),
            now_ns=time.monotonic_ns(),
        )
        return verify(outcome.certificate, facts, signing_key=self.identity.key)
