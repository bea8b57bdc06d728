"""One-line structured logs: ``fields(...)`` rides on any stdlib log call; plain text or JSON.

Must never import anything outside the standard library.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO, Any

from retire.telemetry import names

_EXTRA = "retire_fields"


def fields(**values: object) -> dict[str, dict[str, object]]:
    """``log.info("text", extra=fields(scope=key))``: adds ``scope=...`` to the line."""
    return {_EXTRA: values}


def setup(
    log_format: str = "plain", *, stream: IO[str] | None = None, level: int = logging.INFO
) -> None:
    """Send every ``retire.*`` logger to ``stream`` (default stderr), one line a record."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Plain())
    logger = logging.getLogger(names.LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


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
