"""RETIRE_AUTH=static: tokens from a file of their digests, such as a mounted Secret.

Must never see a token outside a call, nor show a digest: it may be the token by mistake.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retire.protocol.errors import InvalidField, Unauthenticated
from retire.protocol.versions import ScopeKey
from retire.sidecar.authentication import Caller, digest_of
from retire.sidecar.files import Watched
from retire.telemetry import names
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(names.LOGGER_SIDECAR)
FILE_CACHE_S: Final = 5.0  # a token taken out of the file is refused this long afterwards


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    tenant: str
    name: str


class TokenFile:
    """``{"tokens": [{"sha256": hex, "tenant": ..., "name": ...}]}``, read anew when it changes."""

    def __init__(self, path: Path) -> None:
        """InvalidField, naming the entry, when the file cannot be used."""
        self._path = path
        self._file = Watched((path,))
        self._file.mark()
        self._known = _read_tokens(path)

    async def authenticate(self, token: str) -> Caller:
        """See Authenticator. Every entry is compared, in constant time."""
        digest = digest_of(token)
        self._refresh()
        found = [known for known in self._known if hmac.compare_digest(known.digest, digest)]
        if not found:
            raise Unauthenticated("the bearer token is not in the token file")
        return Caller(found[0].tenant, found[0].name, FILE_CACHE_S)

    def _refresh(self) -> None:
        """A file that cannot be used changes nothing: a typo must not lock everyone out."""
        if not self._file.changed():
            return
        self._file.mark()
        try:
            self._known = _read_tokens(self._path)
        except InvalidField as error:
            _log.error("token file refused; the old tokens stay", extra=fields(why=error))
        else:
            _log.info("token file read anew", extra=fields(tokens=len(self._known)))


def _read_tokens(path: Path) -> list[_Known]:
    where = f"RETIRE_TOKENS_FILE {path}"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidField(where, str(error), "a readable JSON file") from None
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(tokens, list):
        raise InvalidField(where, type(body).__name__, '{"tokens": [...]}')
    return [_entry(f"{where}: tokens[{at}]", entry) for at, entry in enumerate(tokens)]


def _entry(where: str, entry: Any) -> _Known:
    if not isinstance(entry, dict):
        raise InvalidField(where, entry, '{"sha256": hex, "tenant": name, "name": text}')
    try:
        digest = bytes.fromhex(entry.get("sha256") or "")
    except (TypeError, ValueError):
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:  # the value may be the token itself: not shown
        raise InvalidField(f"{where}.sha256", "...", "the token's SHA-256 as 64 hex digits")
    try:
        tenant = ScopeKey(entry.get("tenant") or "", "-").tenant
    except (InvalidField, TypeError):
        raise InvalidField(f"{where}.tenant", entry.get("tenant"), "a DNS label") from None
    return _Known(digest, tenant, str(entry.get("name") or "static"))
