"""What is written to a ServingScope, and when it has come true. Pure.

Every patch names the resourceVersion it was made from, so that a revision is never built on another
one that it has not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from retire_operator.kubectl.failures import PluginError
from retire_operator.resource import CONTEXT_KEY, TRACEPARENT

Body = Mapping[str, Any]
_SOURCES: Final = ("inline", "configMapRef", "secretRef")


class Wish(Enum):
    """What a command asks for, besides a revision."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


def spec(body: Body) -> Mapping[str, Any]:
    """``spec``, never None."""
    return body.get("spec") or {}


def status(body: Body) -> Mapping[str, Any]:
    """``status``, never None."""
    return body.get("status") or {}


def next_epoch(body: Body) -> int:
    """One above every epoch that was asked for or reached: agents may have been faster."""
    return max(int(spec(body).get("epoch") or 0), int(status(body).get("epoch") or 0)) + 1


def inline_context(text: str) -> dict[str, Any]:
    """``spec.context`` for a context file: JSON with ``messages`` or ``prompt`` (and ``model``), or
    else the prompt itself."""
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        return prompt_context(text)
    given = {name: parsed[name] for name in ("messages", "prompt") if name in parsed}
    if len(given) != 1 or set(parsed) - {"messages", "prompt", "model"}:
        raise PluginError(
            "the context file must be a prompt, or a JSON object with exactly one of messages,"
            f" prompt, and model if you like; it has {', '.join(parsed) or 'nothing'}"
        )
    model = {"model": parsed["model"]} if parsed.get("model") else {}
    return {"inline": given, **model}


def prompt_context(text: str) -> dict[str, Any]:
    """``spec.context`` for a prompt."""
    if not text.strip():
        raise PluginError("the context is empty; it must be a prompt or messages")
    return {"inline": {"prompt": text}}


def config_map_context(reference: str) -> dict[str, Any]:
    """``spec.context`` for ``NAME`` or ``NAME/KEY``."""
    name, _, key = reference.partition("/")
    if not name or reference.endswith("/"):
        raise PluginError(f"--from-configmap must be NAME or NAME/KEY; got {reference!r}")
    return {"configMapRef": {"name": name, "key": key or CONTEXT_KEY}}


def revision(body: Body, *, context: Mapping[str, Any] | None, traceparent: str) -> dict[str, Any]:
    """The merge patch of one SUPERSEDE. Another source of the context goes, its model stays."""
    changed: dict[str, Any] = {"epoch": next_epoch(body)}
    if context is not None:
        changed["context"] = {**dict.fromkeys(_SOURCES), **context}
        given = context.get("inline")
        if given is not None:  # a merge would leave the other half of an inline context there
            other = "messages" if "prompt" in given else "prompt"
            changed["context"]["inline"] = {**given, other: None}
    meta: dict[str, Any] = {"resourceVersion": body["metadata"]["resourceVersion"]}
    if traceparent:
        meta["annotations"] = {TRACEPARENT: traceparent}
    return {"metadata": meta, "spec": changed}


def wished(body: Body, wish: Wish) -> dict[str, Any] | None:
    """The merge patch for it; None when the object asks for it already."""
    field = "cancelled" if wish is Wish.CANCEL else "paused"
    value = wish is not Wish.RESUME
    if bool(spec(body).get(field)) == value:
        return None
    version = body["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {field: value}}


def reached(body: Body, epoch: int) -> bool:
    """The scope is at that version, or past it: nothing of the plan before is published."""
    return "version" in status(body) and int(status(body).get("epoch") or 0) >= epoch


def come_true(body: Body, wish: Wish) -> bool:
    """The operator has seen the wish, and the scope is as it says."""
    seen = int(status(body).get("observedGeneration") or 0)
    if seen < int(body["metadata"].get("generation") or 0):
        return False
    phase = status(body).get("phase")
    match wish:
        case Wish.CANCEL:
            return phase == "Cancelled"
        case Wish.PAUSE:
            return phase == "Paused"
        case Wish.RESUME:
            return phase not in ("Paused", None)
        case _:
            raise AssertionError(wish)


def receipt_of(body: Body, *, kind: str, epoch: int | None = None) -> Mapping[str, Any] | None:
    """The newest receipt of that kind, or the one that led to ``epoch``."""
    for row in status(body).get("receipts") or ():
        to_epoch = int(str(row.get("toVersion", ".0")).partition(".")[2] or 0)
        if row.get("kind") == kind and epoch in (None, to_epoch):
            return row
    return None


def complete(receipt: Mapping[str, Any] | None) -> bool:
    """It says how the transition went, not only that it was made."""
    return receipt is not None and ("unpublishableMs" in receipt or "error" in receipt)


def obstacle(body: Body) -> str:
    """Why it may not have happened yet: what the conditions say; empty when they say nothing."""
    for row in status(body).get("conditions") or ():
        if row.get("type") == "Ready" and row.get("status") != "True":
            return f"Ready={row.get('status')} {row.get('reason')}: {row.get('message', '')}"
    if not status(body):
        return "no operator has looked at it yet; is the operator running?"
    return ""


def traces(body: Body) -> list[dict[str, Any]]:
    """The receipts that name a trace, newest first; else the last trace of the status alone."""
    names = ("toVersion", "kind", "at", "traceId")
    rows = [
        {name: row[name] for name in names if name in row}
        for row in status(body).get("receipts") or ()
        if row.get("traceId")
    ]
    last = status(body).get("traceId")
    if not rows and last:
        return [{"toVersion": status(body).get("version"), "kind": None, "traceId": last}]
    return rows
