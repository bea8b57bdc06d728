"""The body of a call, read ahead of its application and then given to it as it came.

An input that waits must notice that its caller has left, and an Idempotency-Key stands for a body:
both need the messages before the application asks for them. Must never look into a body.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retire.engine.asgi import Message, Receive


class Received:
    """An ASGI ``receive`` that remembers what it read ahead."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._gone = False
        self._given: list[bytes] = []  # of the body, to the application

    async def __call__(self) -> Message:
        """The next message, for the application."""
        message = self._ahead.popleft() if self._ahead else await self._receive()
        if body := message.get("body"):
            self._given.append(body)
        return message

    def given(self) -> bytes:
        """The body as far as the application has read it."""
        return b"".join(self._given)

    async def body(self) -> bytes:
        """The whole body, before the application asks for it."""
        await self._read()
        return b"".join(message.get("body", b"") for message in self._ahead)

    async def digest(self) -> bytes:
        """sha256 of the whole body."""
        return hashlib.sha256(await self.body()).digest()

    async def disconnected(self) -> None:
        """Returns when the caller has left."""
        await self._read()
        while not self._gone:
            await self._read_one()

    async def _read(self) -> None:
        """The body, to its end."""
        while not self._gone and not self._complete():
            await self._read_one()

    def _complete(self) -> bool:
        return bool(self._ahead) and not self._ahead[-1].get("more_body", False)

    async def _read_one(self) -> None:
        message = await self._receive()
        self._gone = self._gone or message["type"] == "http.disconnect"
        self._ahead.append(message)
