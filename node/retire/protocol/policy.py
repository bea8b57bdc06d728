"""What to do with a new input while work of the scope runs (design, section 3): a pure decision.

Must never import anything outside ``retire.protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from retire.protocol.contract import Contract, Inherit, Policy
from retire.protocol.events import Admission


class InputAction(Enum):
    """What becomes of the input."""

    ADMIT = "admit"  # under the current version, beside whatever runs
    QUEUE = "queue"  # under the current version, once the running work has ended
    SUPERSEDE = "supersede"  # commit the next version first
    REFUSE = "refuse"  # PolicyRefused
    CLOSED = "closed"  # ScopeClosed: the scope was cancelled


@dataclass(frozen=True, slots=True)
class InputDecision:
    """The action and, for SUPERSEDE, the contract it runs under."""

    action: InputAction
    contract: Contract


def decide_input(
    policy: Policy | None, *, admission: Admission, running: bool, contract: Contract
) -> InputDecision:
    """Decide on a new input. No policy: inputs run side by side, as in plain vLLM.

    ``interrupt`` abandons the running work and keeps what it computed for the successor;
    ``rollback`` abandons it as if it had never run, so nothing of it may be inherited.
    """
    if admission is Admission.CANCELLED:
        return InputDecision(InputAction.CLOSED, contract)
    if admission is Admission.PAUSED:
        return InputDecision(InputAction.QUEUE, contract)
    if not running or policy is None:
        return InputDecision(InputAction.ADMIT, contract)
    match policy:
        case Policy.REJECT:
            return InputDecision(InputAction.REFUSE, contract)
        case Policy.ENQUEUE:
            return InputDecision(InputAction.QUEUE, contract)
        case Policy.INTERRUPT:
            return InputDecision(InputAction.SUPERSEDE, contract)
        case Policy.ROLLBACK:
            nothing = replace(contract, inherit=Inherit.NEVER)
            return InputDecision(InputAction.SUPERSEDE, nothing)
