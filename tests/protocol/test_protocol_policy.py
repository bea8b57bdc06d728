"""Policy: every combination of policy, admission and running work."""

from __future__ import annotations

import pytest

from retire.protocol.contract import Contract, Inherit, Policy, Tier
from retire.protocol.events import Admission
from retire.protocol.policy import InputAction, decide_input

CONTRACT = Contract(tier=Tier.DRAM)


@pytest.mark.parametrize(
    ("policy", "action"),
    [
        (None, InputAction.ADMIT),
        (Policy.REJECT, InputAction.REFUSE),
        (Policy.ENQUEUE, InputAction.QUEUE),
        (Policy.INTERRUPT, InputAction.SUPERSEDE),
        (Policy.ROLLBACK, InputAction.SUPERSEDE),
    ],
)
def test_while_work_runs_the_policy_decides(policy: Policy | None, action: InputAction) -> None:
    """The words of LangGraph, decided in one place."""
    decision = decide_input(policy, admission=Admission.OPEN, running=True, contract=CONTRACT)
    assert decision.action is action


@pytest.mark.parametrize("policy", [None, *Policy])
def test_without_running_work_every_input_is_admitted(policy: Policy | None) -> None:
    """A policy is about collisions."""
    decision = decide_input(policy, admission=Admission.OPEN, running=False, contract=CONTRACT)
    assert (decision.action, decision.contract) == (InputAction.ADMIT, CONTRACT)


@pytest.mark.parametrize("policy", [None, *Policy])
@pytest.mark.parametrize("running", [True, False])
def test_paused_and_cancelled_scopes_come_first(policy: Policy | None, running: bool) -> None:
    """Pause queues, cancel closes, whatever the policy says."""
    for admission, action in (
        (Admission.PAUSED, InputAction.QUEUE),
        (Admission.CANCELLED, InputAction.CLOSED),
    ):
        decision = decide_input(policy, admission=admission, running=running, contract=CONTRACT)
        assert decision.action is action


def test_interrupt_keeps_what_was_computed_and_rollback_does_not() -> None:
    """Rolled-back work leaves nothing that a successor may inherit; the rest of C stays."""
    interrupt, rollback = (
        decide_input(p, admission=Admission.OPEN, running=True, contract=CONTRACT).contract
        for p in (Policy.INTERRUPT, Policy.ROLLBACK)
    )
    assert interrupt == CONTRACT
    assert rollback.inherit is Inherit.NEVER and rollback.tier is Tier.DRAM
