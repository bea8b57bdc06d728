"""How much of a running prefill its successor will share, told before the successor is tokenized.

A worker that finds its step superseded weighs the rest of the step with it (``fence_policy``). The
estimate compares what the two calls ask, and must be there with the COMMIT: token lists are counted
exactly, texts by characters. Advice only; must never import vLLM or decide anything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retire.engine.publication import Publication
    from retire.mailbox import Overlaps
    from retire.protocol.versions import ScopeKey


def tell(
    overlaps: Overlaps, live: Iterable[Publication], key: ScopeKey, request: Mapping[str, Any]
) -> None:
    """Say of each response of the scope that still waits for its first token what is shared."""
    for publication in live:
        tag = publication.tag
        if tag is None or tag.key != key or not publication.consumers:
            continue
        if publication.last_published():
            continue  # it decodes: its steps are short
        tokens = max(consumer.prompt_tokens for consumer in publication.consumers)
        shared = shared_tokens(publication.body(), request, tokens)
        if shared is not None:
            overlaps.put(tag.slot, shared)


def shared_tokens(old: bytes, new: Mapping[str, Any], prompt_tokens: int) -> int | None:
    """Tokens of the old prompt before the first difference; None: the calls cannot be compared."""
    try:
        asked = json.loads(old)
    except ValueError:
        return None
    if not isinstance(asked, dict) or asked.get("model") != new.get("model"):
        return None
    before, after = _context(asked), _context(new)
    if before is None or after is None or isinstance(before, str) is not isinstance(after, str):
        return None
    common = _common(before, after)
    if not isinstance(before, str):
        return common
    return prompt_tokens * common // max(1, len(before))


def _context(body: Mapping[str, Any]) -> str | list[int] | None:
    """The prompt as text or tokens, or the messages as one text."""
    match body:
        case {"messages": list(messages)}:
            return "".join(json.dumps(message, sort_keys=True) for message in messages)
        case {"prompt": str(prompt)}:
            return prompt
        case {"prompt": [int(), *_] as tokens}:
            return list(tokens)
        case _:
            return None


def _common(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Length of the common prefix, by halving: slices are compared in C."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
