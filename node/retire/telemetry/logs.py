"""One-line structured logs: ``fields(...)`` rides on any stdlib log call; plain text or JSON.

Quiet by default: what starts, stops and fails. At ``RETIRE_LOG_LEVEL=debug`` there is one event for
each stage of a transition too, with the authority and the trace it belongs to. Must never import a
package that is not ours.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Final

from retire.protocol.errors import InvalidField
from retire.telemetry import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXTRA = "retire_fields"
FORMATS: Final = ("plain", "json")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def fields(**values: object) -> dict[str, dict[str, object]]:
    """``log.info("text", extra=fields(scope=key))``: adds ``scope=...`` to the line."""
    return {_EXTRA: values}


def setup(
    log_format: str = "plain", *, stream: IO[str] | None = None, level: int | None = None
) -> None:
    """Send every ``retire.*`` logger to ``stream`` (default stderr), one line a record.

    ``level`` None: what ``RETIRE_LOG_LEVEL`` says; InvalidField when it says nonsense.
    """
    level = level_of(os.environ) if level is None else level
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Plain())
    logger = logging.getLogger(names.LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def setup_from_env(env: Mapping[str, str]) -> None:
    """For a process that is not ours alone (vLLM's): only where its environment asks for it."""
    log_format = env.get(names.LOG_FORMAT_ENV)
    if log_format or env.get(names.LOG_LEVEL_ENV):
        setup(_checked(names.LOG_FORMAT_ENV, log_format or FORMATS[0]), level=level_of(env))


def format_of(arguments: Sequence[str], default: str) -> str:
    """``--log-format FORMAT`` of a command line, else ``default``."""
    for at, argument in enumerate(arguments):
        name, has_value, value = argument.partition("=")
        if name == "--log-format":
            after = arguments[at + 1] if at + 1 < len(arguments) else ""
            return _checked(name, value if has_value else after)
    return default


def level_of(env: Mapping[str, str]) -> int:
    """``RETIRE_LOG_LEVEL``, by default info."""
    value = env.get(names.LOG_LEVEL_ENV) or "info"
    if value not in LEVELS:
        raise InvalidField(names.LOG_LEVEL_ENV, value, "one of " + ", ".join(LEVELS))
    return LEVELS[value]


def _checked(name: str, value: str) -> str:
    if value not in FORMATS:
        raise InvalidField(name, value, "one of " + ", ".join(FORMATS))
    return value


class _Plain(logging.Formatter):
    """``12:00:01.250 INFO sidecar: lease held node=a lease_ms=2000``."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix(f"{names.LOGGER}.")
        parts = [f"{clock}.{int(record.msecs):03d} {record.levelname} {name}: {_one_line(record)}"]
        parts += [f"{key}={_shown(value)}" for key, value in _fields(record).items()]
        return " ".join(parts) + _trace(self, record)


class _Json(logging.Formatter):
    """The same record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _one_line(record),
        }
        body.update({key: _plain_value(value) for key, value in _fields(record).items()})
        trace = _trace(self, record)
        if trace:
            body["error"] = trace.strip()
        return json.dumps(body, separators=(",", ":"), default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, _EXTRA, {})


def _one_line(record: logging.LogRecord) -> str:
    return record.getMessage().replace("\n", "\\n")


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text) if any(char in text for char in ' "=\n') else text


def _plain_value(value: object) -> object:
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return "\n" + formatter.formatException(record.exc_info)
