"""Every name this package puts on logs and in the history: one line each, with its unit."""

from __future__ import annotations

from typing import Final

LOGGER: Final = "retire"  # root of every logger of this distribution
LOGGER_SIDECAR: Final = "retire.sidecar"
LOGGER_HISTORY: Final = "retire.history"

HISTORY_ENV: Final = "RETIRE_HISTORY"  # path of the NDJSON history; unset: no history
HISTORY_DIGESTS_ENV: Final = "RETIRE_HISTORY_DIGESTS"  # 1: with digests of certified KV pages
LOG_FORMAT_ENV: Final = "RETIRE_LOG_FORMAT"  # plain | json
