"""Certificates: what may be signed, and every way in which adoption must be refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_certificates import FACTS, KEY_BYTES, OTHER_KEY, PART, PROMPT, certificate

from retire.protocol.certificates import certify, token_digest, verify
from retire.protocol.contract import StopReason
from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version

GOOD = certify(certificate(), KEY_BYTES)


def test_a_good_certificate_is_accepted() -> None:
    """The positive control of every refusal below."""
    assert verify(GOOD, FACTS, signing_key=KEY_BYTES) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"key": ScopeKey("other", "plan")},
        {"from_version": Version(1, 0)},
        {"to_version": Version(1, 3)},
        {"generation": 8},
        {"fingerprint": "model-y"},
        {"numerical_mode": "bf16"},
        {"tokens": 95},
        {"token_digest": token_digest(PROMPT, 95)},
        {"blocks": ((1, 2, 4),)},
        {"participants": (replace(PART, frontier_tokens=97),)},
        {"expires_ns": 2001},
    ],
    ids=lambda c: next(iter(c)),
)
def test_no_field_can_be_changed_after_signing(changes: dict) -> None:
    """The signature covers every field."""
    forged = replace(GOOD, **changes)
    assert verify(forged, FACTS, signing_key=KEY_BYTES) is StopReason.GENERATION


def test_another_boot_cannot_sign() -> None:
    """A key belongs to one boot of one engine."""
    alien = certify(certificate(), OTHER_KEY)
    assert verify(alien, FACTS, signing_key=KEY_BYTES) is StopReason.GENERATION


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"key": ScopeKey("acme", "other")}, StopReason.NO_PREDECESSOR),
        ({"key": ScopeKey("rival", "plan")}, StopReason.NO_PREDECESSOR),
        ({"version": Version(1, 3)}, StopReason.GENERATION),
        ({"version": Version(2, 2)}, StopReason.GENERATION),
        ({"generation": 8}, StopReason.GENERATION),
        ({"now_ns": 2000}, StopReason.GENERATION),
        ({"boot_ids": frozenset(("boot2",))}, StopReason.GENERATION),
        ({"fingerprint": "lora-y"}, StopReason.FINGERPRINT),
        ({"numerical_mode": "batch-invariant"}, StopReason.FINGERPRINT),
        ({"prompt": (*PROMPT[:95], 7, *PROMPT[96:])}, StopReason.FIRST_DIFFERENCE),
        ({"prompt": PROMPT[:96]}, StopReason.FIRST_DIFFERENCE),
    ],
)
def test_adoption_under_other_facts_is_refused(facts: dict, reason: StopReason) -> None:
    """Tenant, scope, version, generation, lease, boot, configuration and tokens all bind."""
    assert verify(GOOD, replace(FACTS, **facts), signing_key=KEY_BYTES) is reason


def test_an_open_writer_is_refused_even_when_signed() -> None:
    """Whoever signed it: a participant that is not closed, or is behind, ends the reuse."""
    from retire.protocol.certificates import sign

    for part in (replace(PART, closed=False), replace(PART, frontier_tokens=80)):
        draft = certificate(participants=(part,))
        signed = replace(draft, signature=sign(draft, KEY_BYTES))
        assert verify(signed, FACTS, signing_key=KEY_BYTES) is StopReason.FRONTIER


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens": 97}, "certificate.tokens"),
        ({"tokens": 0}, "certificate.tokens"),
        ({"participants": ()}, "certificate.tokens"),
        ({"participants": (replace(PART, closed=False),)}, "certificate.participants"),
        ({"to_version": Version(1, 1)}, "certificate.to_version"),
    ],
)
def test_what_must_not_exist_is_not_signed(changes: dict, field: str) -> None:
    """certify checks the draft against its own receipts."""
    with pytest.raises(InvalidField, match=field.replace(".", r"\.")):
        certify(certificate(**changes), KEY_BYTES)


def test_a_short_key_is_refused() -> None:
    """16 bytes at least."""
    with pytest.raises(InvalidField, match="signing_key"):
        certify(certificate(), b"short")


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=3000), st.data())
def test_the_digest_depends_on_exactly_the_prefix(tokens: list[int], data: st.DataObject) -> None:
    """Tokens after the count do not matter; any within do."""
    count = data.draw(st.integers(1, len(tokens)))
    digest = token_digest(tokens, count)
    assert digest == token_digest([*tokens[:count], 5, 6], count)
    at = data.draw(st.integers(0, count - 1))
    changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    assert digest != token_digest(changed, count)
