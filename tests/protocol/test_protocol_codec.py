"""Codecs: round trips through real JSON, the receipt's schema, and errors that name the field."""

from __future__ import annotations

import json

import jsonschema
import protocol_values as values
import pytest
from hypothesis import given, settings

from retire.protocol import codec
from retire.protocol.contract import Contract, Equivalence, Inherit, Receipt, StopReason, Tier
from retire.protocol.errors import InvalidField
from retire.protocol.schema import _STOP_REASONS, RECEIPT_SCHEMA
from retire.protocol.versions import ScopeKey, Version

V1, V2 = Version(1, 1), Version(1, 2)
VALIDATOR = jsonschema.Draft202012Validator(RECEIPT_SCHEMA)
RECEIPT = Receipt(ScopeKey("acme", "plan"), V1, V2, {"commit": 1.5})


def through_json(value: object) -> object:
    return json.loads(json.dumps(value))


@given(values.receipts)
@settings(max_examples=60, deadline=None)
def test_receipts_survive_json_and_match_their_schema(receipt: Receipt) -> None:
    """Round trip, and RECEIPT_SCHEMA accepts what is sent (C8)."""
    plain = through_json(codec.receipt_to_dict(receipt))
    VALIDATOR.validate(plain)
    assert codec.receipt_from_dict(plain) == receipt


@given(values.certificates)
@settings(max_examples=100, deadline=None)
def test_certificates_survive_json(certificate) -> None:
    """Nothing that the signature covers is lost on the way to another tier."""
    plain = through_json(codec.certificate_to_dict(certificate))
    assert codec.certificate_from_dict(plain) == certificate


@given(values.contracts)
def test_contracts_survive_json(contract: Contract) -> None:
    """As in the body of a SUPERSEDE."""
    assert codec.contract_from_dict(through_json(codec.contract_to_dict(contract))) == contract


@given(values.keys)
def test_keys_survive_json(key: ScopeKey) -> None:
    """Tenant and scope, Unicode included."""
    assert codec.key_from_dict(through_json(codec.key_to_dict(key))) == key


@given(values.versions)
def test_versions_survive_text(version: Version) -> None:
    """``term.epoch`` and back."""
    assert codec.version_from_text(codec.version_to_text(version)) == version


def test_the_schema_is_a_valid_schema_and_knows_every_reason() -> None:
    """The schema's own form, and its list of stop reasons against the Enum."""
    jsonschema.Draft202012Validator.check_schema(RECEIPT_SCHEMA)
    assert set(_STOP_REASONS) == {r.value for r in StopReason}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"to_version": "1"},
        {"certified_tokens": -1},
        {"stop_reason": "bored"},
        {"gates": [{"gate": "a", "outcome": "maybe", "ms": 1}]},
        {"surprise": 1},
    ],
    ids=str,
)
def test_the_schema_refuses_what_is_no_receipt(change: dict) -> None:
    """A schema that accepted everything would prove nothing."""
    bad = codec.receipt_to_dict(RECEIPT) | change
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(bad)


def test_every_key_of_a_receipt_is_required() -> None:
    """A receipt is never partial: null says unknown."""
    for name in codec.receipt_to_dict(RECEIPT):
        bad = {k: v for k, v in codec.receipt_to_dict(RECEIPT).items() if k != name}
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(bad)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, Contract()),
        ({}, Contract()),
        ({"inherit": "never"}, Contract(inherit=Inherit.NEVER)),
        ({"equivalence": "batch-invariant"}, Contract(Equivalence.BATCH_INVARIANT)),
        ({"tier": "dram", "ttl_s": 5}, Contract(tier=Tier.DRAM, ttl_s=5)),
        ({"fence_bound_ms": None}, Contract()),
    ],
)
def test_a_contract_may_leave_out_anything(body: object, expected: Contract) -> None:
    """Absent and null are the default."""
    assert codec.contract_from_dict(body) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"ttl": 5}, "contract.ttl must be absent; known keys are equivalence, fence_bound_ms"),
        ({"equivalence": "roughly"}, "contract.equivalence must be one of exact, batch-invariant"),
        ({"inherit": True}, "contract.inherit must be one of certified, never; got True"),
        ({"tier": 1}, "contract.tier must be one of hbm, dram; got 1"),
        ({"ttl_s": "5"}, "contract.ttl_s must be a number; got '5'"),
        ({"ttl_s": True}, "contract.ttl_s must be a number; got True"),
        ({"ttl_s": 0}, "contract.ttl_s must be above 0, at most 3600; got 0"),
        ({"ttl_s": float("nan")}, "contract.ttl_s must be a finite number; got nan"),
        ({"fence_bound_ms": -1}, "contract.fence_bound_ms must be above 0, or absent; got -1"),
        ([], "contract must be a JSON object; got []"),
    ],
    ids=str,
)
def test_a_bad_contract_names_its_field(body: object, message: str) -> None:
    """The message says which field, what it must be and what it was."""
    with pytest.raises(InvalidField) as caught:
        codec.contract_from_dict(body)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": 9}, "receipt.schema"),
        ({"from_version": 1}, "receipt.from_version"),
        ({"from_version": "01.1"}, "receipt.from_version"),
        ({"stages_ms": {"commit": "fast"}}, "receipt.stages_ms.commit"),
        ({"gates": [{"gate": "a"}]}, "receipt.gates[0].outcome"),
        ({"participants": {}}, "receipt.participants"),
        ({"certified_tokens": 1.5}, "receipt.certified_tokens"),
        ({"replayed": "no"}, "receipt.replayed"),
    ],
)
def test_a_bad_receipt_names_its_field(change: dict, field: str) -> None:
    """Errors carry the whole path."""
    with pytest.raises(InvalidField) as caught:
        codec.receipt_from_dict(codec.receipt_to_dict(RECEIPT) | change)
    assert caught.value.field == field


def test_a_receipt_of_a_later_version_is_still_read() -> None:
    """Unknown keys are ignored when reading, so that receipts can grow."""
    grown = codec.receipt_to_dict(RECEIPT) | {"carbon_g": 1}
    assert codec.receipt_from_dict(grown) == RECEIPT


@pytest.mark.parametrize("text", [None, 1, "", "1", "1.2.3", "-1.0", "1.x", "01.0", "٣.1"])
def test_a_malformed_version_is_refused(text: object) -> None:
    """Nothing but two plain decimal numbers and a dot."""
    with pytest.raises(InvalidField, match="version must be written"):
        codec.version_from_text(text)
