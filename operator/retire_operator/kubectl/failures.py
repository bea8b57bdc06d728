"""Every way a command can fail, as one line for people. Translated once, here.

PluginError        one line on stderr, status 1
├── ScopeMissing   no such ServingScope
├── Changed        somebody else wrote the object meanwhile: read it again
├── Refused        the API server's own words: a CEL rule, a schema, a webhook
├── Denied         RBAC or authentication
└── TooLate        what was asked for has not happened in time
"""

from __future__ import annotations

import json
import re
from typing import Any

from kubernetes.client.exceptions import ApiException

_PREFIX = re.compile(r'^Invalid value: ("[^"]*": )?')


class PluginError(Exception):
    """What went wrong and, where it is known, what to do."""


class ScopeMissing(PluginError):
    """No such ServingScope."""


class Changed(PluginError):
    """The object is another than the one that was read."""


class Refused(PluginError):
    """The API server refuses what was written, in its own words."""


class Denied(PluginError):
    """The user may not do this."""


class TooLate(PluginError):
    """What was asked for has not happened in time."""


def translated(error: ApiException, *, what: str, namespace: str) -> PluginError:
    """``what`` names the call, such as ``get servingscope "plan"``."""
    status = _status(error.body)
    message = status.get("message") or error.reason or f"HTTP {error.status}"
    match error.status:
        case 401:
            return Denied(f"{what}: you must be logged in to the server ({message})")
        case 403:
            return Denied(f"{what} in namespace {namespace!r}: {message}")
        case 404 if not (status.get("details") or {}).get("name"):
            return PluginError(
                "the server does not know servingscopes.serving.retire.dev:"
                " install the chart (or its CRD) first"
            )
        case 404:
            return ScopeMissing(f"{what}: not found in namespace {namespace!r}")
        case 409:
            return Changed(f"{what}: {message}")
        case 400 | 422:
            return Refused(_words(status) or message)
        case None | 0:
            return PluginError(f"{what}: {message}")
        case _:
            return PluginError(f"{what}: the server answered {error.status}: {message}")


def _words(status: dict[str, Any]) -> str:
    """The rules that were broken: the CRD's own as they are worded, the schema's with their
    field."""
    causes = (status.get("details") or {}).get("causes") or []
    return "\n".join(dict.fromkeys(_rule(c) for c in causes if c.get("message")))


def _rule(cause: dict[str, Any]) -> str:
    text = _PREFIX.sub("", str(cause["message"]))
    field = str(cause.get("field") or "")
    return text if "spec." in text or field in ("", "<nil>") else f"{field}: {text}"


def _status(body: Any) -> dict[str, Any]:
    try:
        parsed = json.loads(body or "")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
