"""What bounds the DRAM tier, from the environment. A bad value stops the process and is named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

BYTES_ENV: Final = "RETIRE_HOST_BYTES"
TENANT_BYTES_ENV: Final = "RETIRE_HOST_TENANT_BYTES"
TIMEOUT_ENV: Final = "RETIRE_RESTORE_TIMEOUT_MS"
_BYTES_MAX: Final = 4 * 2**30  # unless told otherwise; taken only when a contract asks for it
_SHARE: Final = 8  # and at most this part of the host's memory
_TIMEOUT_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Bounds of one engine, all its ranks together."""

    bytes: int  # 0: the tier is off
    tenant_bytes: int | None  # of each tenant, unless a quota of its own was set; None: no bound
    restore_timeout_s: float  # a copy that comes later is not installed

    @classmethod
    def from_env(cls) -> HostSettings:
        """Read them. ValueError names the variable."""
        tenant = os.environ.get(TENANT_BYTES_ENV)
        return cls(
            bytes=_number(BYTES_ENV, default_bytes(), least=0),
            tenant_bytes=None if tenant is None else _number(TENANT_BYTES_ENV, 0, least=0),
            restore_timeout_s=_number(TIMEOUT_ENV, _TIMEOUT_MS, least=1) / 1e3,
        )


def default_bytes() -> int:
    """4 GiB, but at most an eighth of the host's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_BYTES_MAX, memory // _SHARE)


def _number(name: str, default: int, *, least: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} must be a whole number, at least {least}; got {text!r}")
    return int(text)
