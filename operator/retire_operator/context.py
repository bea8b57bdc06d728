"""From ``spec.context`` to what Warm computes: one JSON body, and its digest. Pure.

What is wrong comes back as Missing, a reason and a sentence that names object, key and fix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from retire_operator.facts import Context, Missing
from retire_operator.resource import ContextSource, Ref, Source

_INVALID = "ContextInvalid"


def inline(source: ContextSource) -> Context | Missing:
    """The text stands in the object itself."""
    return _from_text(source.inline_json, source, "spec.context.inline")


def from_config_map(
    source: ContextSource, ref: Ref, data: Mapping[str, str] | None
) -> Context | Missing:
    """``data`` None: there is no such ConfigMap."""
    where = f"ConfigMap {ref}"
    if data is None:
        return Missing("ConfigMapMissing", f"spec.context.configMapRef: no {where}")
    if source.key not in data:
        return Missing(
            "KeyMissing", f"spec.context.configMapRef: {where} has no key {source.key!r}"
        )
    return _from_text(data[source.key], source, f"{where} key {source.key!r}")


def from_secret(
    source: ContextSource, ref: Ref, data: Mapping[str, bytes] | None
) -> Context | Missing:
    """``data`` None: there is no such Secret. Its text is never repeated in a message."""
    where = f"Secret {ref}"
    if data is None:
        return Missing("SecretMissing", f"spec.context.secretRef: no {where}")
    if source.key not in data:
        return Missing("KeyMissing", f"spec.context.secretRef: {where} has no key {source.key!r}")
    try:
        text = data[source.key].decode("utf-8")
    except UnicodeDecodeError:
        return Missing(_INVALID, f"{where} key {source.key!r} must be UTF-8 text")
    return _from_text(text, source, f"{where} key {source.key!r}")


def unreadable(source: ContextSource, ref: Ref, why: str) -> Missing:
    """The API server did not hand the object out."""
    kind = "Secret" if source.source is Source.SECRET else "ConfigMap"
    return Missing(f"{kind}Unreadable", f"spec.context: {kind} {ref} cannot be read: {why}")


def _from_text(text: str, source: ContextSource, where: str) -> Context | Missing:
    """JSON with messages or prompt, else the prompt itself."""
    if not text.strip():
        return Missing(_INVALID, f"{where} is empty; it must hold a prompt or messages")
    try:
        body: Any = json.loads(text)
    except ValueError as error:
        if _means_json(text):
            at = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "its text"
            return Missing(_INVALID, f"{where} is not valid JSON ({at}); mend it")
        return _context({"prompt": text}, source)
    if not isinstance(body, dict):
        return _context({"prompt": text}, source)
    wrong = _wrong(body)
    if wrong:
        return Missing(_INVALID, f"{where}: {wrong}")
    return _context({name: body[name] for name in ("messages", "prompt") if name in body}, source)


def _means_json(text: str) -> bool:
    return text.lstrip().startswith("{") and ('"messages"' in text or '"prompt"' in text)


def _wrong(body: Mapping[str, Any]) -> str:
    if ("messages" in body) == ("prompt" in body):
        return "a JSON object must have exactly one of prompt, messages"
    if "prompt" in body:
        good = isinstance(body["prompt"], str) and body["prompt"]
        return "" if good else "prompt must be a string that is not empty"
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        return "messages must be a list that is not empty"
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"messages[{at}].role must be a string"
        if not isinstance(message.get("content"), str):
            return f"messages[{at}].content must be a string"
    return ""


def _context(body: dict[str, Any], source: ContextSource) -> Context:
    if source.model:
        body = {**body, "model": source.model}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Context(text, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
