"""The bodies and answers of ``/v1/scopes/...``: read and checked, built and named. Pure.

Owns the wire form of the routes (design, section 5). Errors are InvalidField with the field's path.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.codec import contract_from_dict
from retire.protocol.errors import InvalidField
from retire.protocol.fields import Fields
from retire.protocol.versions import Version
from retire.sidecar import convert
from retire.sidecar.client import Mutation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.protocol.contract import Contract
    from retire.sidecar.pb import node_pb2 as pb

IDEMPOTENCY: Final = b"idempotency-key"
TRACEPARENT: Final = b"traceparent"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class SupersedeCall:
    """The body of a SUPERSEDE. ``request`` None: retire now, the successor comes later."""

    mutation: Mutation
    contract: Contract
    request: dict[str, Any] | None


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        body = json.loads(raw or b"{}")
    except ValueError as error:
        raise InvalidField("body", raw[:80].decode("latin-1"), f"JSON ({error})") from None
    except RecursionError:
        raise InvalidField("body", raw[:80].decode("latin-1"), "JSON (nested too deeply)") from None
    if not isinstance(body, dict):
        raise InvalidField("body", body, "a JSON object")
    return body


def read_mutation(body: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Mutation:
    """What cancel, pause and resume take: nothing but the expected version."""
    Fields(body, "body").only(("expected_version",))
    return _mutation(body, headers)


def read_supersede(body: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> SupersedeCall:
    """What SUPERSEDE takes."""
    fields = Fields(body, "body")
    fields.only(("contract", "expected_version", "request", "stream"))
    mutation = _mutation(body, headers)
    contract = contract_from_dict(body.get("contract"))
    return SupersedeCall(mutation, contract, _request(fields))


def read_change(headers: Mapping[bytes, bytes], expected: Version, *, digest: bytes) -> Mutation:
    """What a change that an ordinary call makes takes from its headers."""
    return Mutation(
        expected=expected,
        idempotency_key=_idempotency_key(headers.get(IDEMPOTENCY)),
        body_digest=digest,
        traceparent=headers.get(TRACEPARENT, b"").decode("latin-1"),
    )


def scope_json(view: pb.ScopeView) -> dict[str, Any]:
    """``GET /v1/scopes/{scope}``."""
    return {
        "scope": view.key.scope,
        "tenant": view.key.tenant,
        "version": str(convert.version_from(view.version)),
        "phase": view.phase,
        "on_new_input": view.policy or None,
        "parent": view.parent or None,
        "paused": view.paused,
        "cancelled": view.cancelled,
        "pinned_blocks": view.pinned_blocks,
        "nodes": list(view.nodes),
        "requests": [
            {
                "request_id": request.request_id,
                "state": request.state,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
            }
            for request in view.requests
        ],
        "receipts": [json.loads(text) for text in view.receipts_json],
    }


def transition_json(reply: pb.TransitionReply) -> dict[str, Any]:
    """The answer to cancel, pause and resume."""
    return {
        "from_version": str(convert.version_from(getattr(reply, "from"))),
        "version": str(convert.version_from(reply.to)),
        "receipt": json.loads(reply.receipt_json) if reply.receipt_json else None,
        "replayed": reply.replayed,
    }


def _mutation(body: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Mutation:
    if body.get("expected_version") is None:
        raise InvalidField(
            "body.expected_version", None,
            'present: the version you believe is current, for example "1.4"',
        )  # fmt: skip
    return read_change(headers, _version(body["expected_version"]), digest=digest(body))


def digest(body: Mapping[str, Any]) -> bytes:
    """sha256 of the canonical body: what an idempotency key stands for."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).digest()


def _version(value: object) -> Version:
    if not isinstance(value, str):
        raise InvalidField(
            "body.expected_version", value, 'written "term.epoch", for example "1.4"'
        )
    try:
        return Version.parse(value, field="body.expected_version")
    except InvalidField as error:
        if error.field == "body.expected_version":
            raise
        raise InvalidField("body.expected_version", value, "within 0..2^24-1 . 0..2^40-1") from None


def _idempotency_key(value: bytes | None) -> str:
    if value is None:
        return uuid.uuid4().hex
    text = value.decode("latin-1")
    if _KEY.fullmatch(text) is None:
        raise InvalidField("idempotency-key", text, "1 to 255 printable ASCII characters, no space")
    return text


def _request(fields: Fields) -> dict[str, Any] | None:
    """The successor's body, with ``stream`` decided: of the call, else of the body, else true."""
    outer = fields.optional("stream", fields.flag)
    if not fields.has("request"):
        return None
    request = fields.plain("request")
    if "messages" not in request and "prompt" not in request:
        raise InvalidField(
            "body.request", sorted(request), 'a chat ("messages") or completion ("prompt") body'
        )
    inner = request.get("stream")
    if outer is not None and inner is not None and inner != outer:
        raise InvalidField("body.stream", outer, "the same as body.request.stream, or absent")
    request["stream"] = next((s for s in (outer, inner) if s is not None), True)
    return request
