"""How far vLLM is with a long prompt, seen from outside: the KV cache in use (``/metrics``).

The only progress of a prefill that a server without our plugin shows too, so that every arm is
interrupted at the same point. Must never be used to measure time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import httpx

_USAGE: Final = re.compile(r"^vllm:kv_cache_usage_perc\{[^}]*\} (\S+)$", re.MULTILINE)
_SIZE: Final = re.compile(r'^vllm:cache_config_info\{.*?kv_cache_size_tokens="(\d+)"', re.MULTILINE)


async def tokens_in_use(http: httpx.AsyncClient) -> float:
    """Tokens of KV that running requests hold; 0.0 when the server shows no such figure."""
    text = (await http.get("/metrics")).text
    usage, size = _USAGE.search(text), _SIZE.search(text)
    return float(usage[1]) * int(size[1]) if usage and size else 0.0
