"""The typed client of Retire, for agent runtimes: scopes, streams, SUPERSEDE and its receipts.

::

    with Retire("http://127.0.0.1:8000") as retire:
        plan = retire.scope("plan-7")
        for chunk in plan.chat([{"role": "user", "content": "..."}], model="m"):
            ...
        successor = plan.supersede(request={"model": "m", "messages": [...]})
        print(successor.receipt.certified_tokens)
        for chunk in successor:
            ...

Once ``supersede`` has returned, no stream of this client yields a chunk of an older version,
whatever the network still delivers. Needs httpx only; must never import another adapter.
"""

from retire.client.aio import AsyncRetire, AsyncScope, AsyncStream, AsyncSuccessor
from retire.client.errors import (
    NotVersioned,
    RequestRejected,
    StreamCorrupt,
    StreamInterrupted,
    Superseded,
    Unreachable,
)
from retire.client.retry import RetryPolicy
from retire.client.sync import Retire, Scope, Stream, Successor
from retire.client.views import Chunk, Reply, ScopeInfo, Transition

__all__ = [
    "AsyncRetire",
    "AsyncScope",
    "AsyncStream",
    "AsyncSuccessor",
    "Chunk",
    "NotVersioned",
    "Reply",
    "RequestRejected",
    "Retire",
    "RetryPolicy",
    "Scope",
    "ScopeInfo",
    "Stream",
    "StreamCorrupt",
    "StreamInterrupted",
    "Successor",
    "Superseded",
    "Transition",
    "Unreachable",
]
