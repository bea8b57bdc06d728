"""One good certificate and the facts it is good for."""

from retire.protocol.certificates import AdoptionFacts, Certificate, token_digest
from retire.protocol.contract import Participant
from retire.protocol.versions import ScopeKey, Version

KEY_BYTES, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TENANT = ScopeKey("acme", "plan")
PROMPT = tuple(range(200))
PART = Participant("node", "boot", 0, 0, 0, 96, True)
FACTS = AdoptionFacts(
    TENANT, Version(1, 2), 7, "model-x", "fp32", PROMPT, frozenset(("boot",)), 1000
)


def certificate(**changes: object) -> Certificate:
    values: dict = {
        "key": TENANT,
        "from_version": Version(1, 1),
        "to_version": Version(1, 2),
        "generation": 7,
        "fingerprint": "model-x",
        "numerical_mode": "fp32",
        "tokens": 96,
        "token_digest": token_digest(PROMPT, 96),
        "blocks": ((1, 2, 3),),
        "participants": (PART,),
        "expires_ns": 2000,
    }
    return Certificate(**(values | changes))
