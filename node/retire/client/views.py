"""What a caller gets: chunks, whole answers, scopes. Value types read from JSON.

Must never import httpx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retire.client.errors import NotVersioned, StreamCorrupt
from retire.protocol.versions import Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retire.protocol.contract import Receipt


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream: the version it was published under and the text it adds."""

    version: Version
    text: str  # "" for a role, usage or finish chunk
    choice: int  # 0..n-1
    finish_reason: str | None
    raw: Mapping[str, Any]  # the OpenAI chunk as received


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer (``stream=False``)."""

    version: Version
    text: str  # of the first choice
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Transition:
    """The answer to cancel, pause and resume. Only a cancel has a receipt."""

    version: Version
    receipt: Receipt | None
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScopeInfo:
    """A scope as the server sees it (``GET /v1/scopes/{scope}``)."""

    name: str
    tenant: str
    version: Version
    phase: str
    paused: bool
    cancelled: bool
    pinned_blocks: int
    raw: Mapping[str, Any]  # also: requests, nodes, receipts


def chunk_of(body: Mapping[str, Any], header: Version | None) -> Chunk:
    """Read an OpenAI chunk; its own version wins over the response header's."""
    choice = _first_choice(body)
    return Chunk(
        version=version_of(body, header),
        text=_text_of(choice),
        choice=choice.get("index", 0),
        finish_reason=choice.get("finish_reason"),
        raw=body,
    )


def reply_of(body: Mapping[str, Any], header: Version | None) -> Reply:
    """Read a whole OpenAI answer."""
    return Reply(version_of(body, header), _text_of(_first_choice(body)), body)


def scope_info_of(body: Mapping[str, Any]) -> ScopeInfo:
    """Read one scope; StreamCorrupt names the missing field."""
    try:
        return ScopeInfo(
            name=body["scope"],
            tenant=body["tenant"],
            version=Version.parse(body["version"]),
            phase=body.get("phase", ""),
            paused=body.get("paused", False),
            cancelled=body.get("cancelled", False),
            pinned_blocks=body.get("pinned_blocks", 0),
            raw=body,
        )
    except KeyError as missing:
        raise StreamCorrupt(f"a scope without {missing}: {dict(body)}") from missing


def version_of(body: Mapping[str, Any], header: Version | None) -> Version:
    """The version a body was published under; NotVersioned when nothing says."""
    tag = body.get("retire")
    if isinstance(tag, dict) and isinstance(tag.get("version"), str):
        return Version.parse(tag["version"], field="retire.version")
    if header is None:
        raise NotVersioned(
            "the answer to a scoped request carries no version; "
            "is the server running the Retire plugin (VLLM_PLUGINS=retire,retire_api)?"
        )
    return header


def _first_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices") or [{}]
    return choices[0]


def _text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or message.get("content") or ""
