"""The two registry clients, asyncio and blocking. What is not IO they share: operations.py.

Must never import the sidecar or the engine.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from types import CoroutineType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import redis.exceptions as redis_errors

from retire.protocol.errors import RegistryUnavailable
from retire.registry.calls import Call, Program
from retire.registry.durability import Question, inquire
from retire.registry.failures import refusal, unavailable
from retire.registry.following import Cursor
from retire.registry.interface import Event, Renewal
from retire.registry.keys import Keyspace
from retire.registry.operations import Operations
from retire.registry.replies import one_renewal
from retire.registry.settings import (
    Durability,
    RegistrySettings,
    checked_url,
    open_async,
    open_sync,
    where,
)

P = ParamSpec("P")
T = TypeVar("T")

_EVENTS_AT_ONCE: Final = 500
_BLOCK_S: Final = 1.0  # an idle reader asks this often whether the stream is still the same
_RECONNECT_S: Final = 0.2
RENEWALS_AT_ONCE: Final = 16  # connections that a renewal may take from the pool
_FAILURES: Final = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,  # no RedisError upstream
    OSError,
    TimeoutError,
    RuntimeError,  # uvloop: the connection was reset before a command was written to it
)


def _evaluation(call: Call, *, load: bool) -> tuple[str | int, ...]:
    # The read-only forms ask for the right to read KEYS only, so that a reader's ACL can be that.
    kind = "" if call.mutates else "_RO"
    name = (f"EVAL{kind}", call.script.source) if load else (f"EVALSHA{kind}", call.script.sha1)
    return (*name, len(call.keys), *call.keys, *call.args)


def _xread(cursor: Cursor, settings: RegistrySettings) -> dict[str, Any]:
    block_ms = int(min(_BLOCK_S, settings.timeout_s / 2) * 1000)
    return {"streams": {cursor.stream: cursor.after}, "count": _EVENTS_AT_ONCE, "block": block_ms}


def _confirmed(replies: list[Any], address: str) -> Any:
    """The reply of the script in front of WAITAOF, when the local fsync was confirmed."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    if replies[1][0] < 1:
        raise RegistryUnavailable(
            f"registry {address} did not confirm its fsync in time; try again"
        )
    return replies[0]


class _Base:
    """What both clients hold."""

    def __init__(self, url: str, settings: RegistrySettings | None = None) -> None:
        self._settings = settings or RegistrySettings()
        self._url = checked_url(url, cluster=self._settings.cluster)
        self._where = where(url)
        self._keyspace = Keyspace(self._settings.prefix)
        self.operations = Operations(self._keyspace, may_open=self._settings.create_when_empty)
        self._durability: Durability | None = None

    def _translate(self, error: Exception, call: Call) -> Exception:
        if isinstance(error, redis_errors.ResponseError):
            refused = refusal(str(error), call.subject)
            if refused is not None:
                return refused
        return unavailable(error, self._where)

    @property
    def _waitaof_ms(self) -> int:
        # The reply must beat the socket's timeout.
        return max(1, int(self._settings.timeout_s * 800))


def _awaited(
    operation: Callable[Concatenate[Operations, P], Program[T]],
) -> Callable[Concatenate[AsyncRegistry, P], CoroutineType[Any, Any, T]]:
    @functools.wraps(operation)
    async def method(self: AsyncRegistry, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.drive(operation(self.operations, *args, **kwargs))

    return method


class AsyncRegistry(_Base):
    """The asyncio registry (interface.Registry) at a ``redis://``, ``rediss://`` or ``unix://``
    URL."""

    def __init__(self, url: str, settings: RegistrySettings | None = None) -> None:
        super().__init__(url, settings)
        self._client = open_async(self._url, self._settings)

    hello = _awaited(Operations.hello)
    list_tenants = _awaited(Operations.list_tenants)
    register = _awaited(Operations.register)
    configure = _awaited(Operations.configure)
    join = _awaited(Operations.join)
    leave = _awaited(Operations.leave)
    commit = _awaited(Operations.commit)
    ack = _awaited(Operations.ack)
    report = _awaited(Operations.report)
    expire = _awaited(Operations.expire)
    reserve = _awaited(Operations.reserve)
    release = _awaited(Operations.release)
    set_quota = _awaited(Operations.set_quota)
    get = _awaited(Operations.get)
    list_scopes = _awaited(Operations.list_scopes)
    snapshot = _awaited(Operations.snapshot)
    rebuild = _awaited(Operations.rebuild)

    async def renew(
        self, node: str, *, term: int, boot_id: str, lease_s: float, tenants: Mapping[str, int]
    ) -> Renewal:
        """See Registry.renew. Tenants are renewed side by side: the server makes durable with one
        fsync what reaches it together, and a lease must not end because tenants are many."""
        if not tenants:  # nothing to send, but bad arguments are refused all the same
            return await self.drive(
                self.operations.renew(node, term=term, boot_id=boot_id, lease_s=lease_s, tenants={})
            )
        places = asyncio.Semaphore(RENEWALS_AT_ONCE)

        async def one(tenant: str, sequence: int) -> Renewal:
            async with places:
                return await self.drive(
                    self.operations.renew(
                        node,
                        term=term,
                        boot_id=boot_id,
                        lease_s=lease_s,
                        tenants={tenant: sequence},
                    )
                )

        parts = await asyncio.gather(
            *(one(tenant, sequence) for tenant, sequence in tenants.items()), return_exceptions=True
        )
        return one_renewal(lease_s, parts)

    async def events(self, tenant: str, *, after: str) -> AsyncIterator[Event]:
        """See Registry.events. Reads on a connection of its own."""
        cursor = Cursor(self._keyspace, tenant, after=after)
        cursor.stand(*await self.drive(self._tail(cursor)))
        client, certain = open_async(self._url, replace(self._settings, retries=0)), True
        try:
            while True:
                try:
                    if not certain:  # idle, or another server may answer at this address now
                        cursor.stand(*await self.drive(self._tail(cursor)))
                    reply = await client.xread(**_xread(cursor, self._settings))
                    certain = bool(reply)
                except (RegistryUnavailable, *_FAILURES):
                    certain = False
                    await asyncio.sleep(_RECONNECT_S)
                    continue
                for event in cursor.read(reply):
                    yield event
        finally:
            await client.aclose()

    async def check_durability(self) -> Durability:
        """How writes become durable here; RegistryUnavailable when they do not. Also runs before
        the first write."""
        inquiry = inquire(self._settings, self._where)
        try:
            question = next(inquiry)
            while True:
                question = inquiry.send(await self._ask(question))
        except StopIteration as decided:
            self._durability = decided.value
            return decided.value

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    def _tail(self, cursor: Cursor) -> Program[tuple[str, str, int]]:
        return self.operations.tail(
            cursor.tenant, incarnation=cursor.incarnation, after=cursor.after
        )

    async def drive(self, program: Program[T]) -> T:
        """Run a program of operations.py: send its calls, hand it the replies."""
        try:
            call = next(program)
            while True:
                call = program.send(await self._run(call))
        except StopIteration as finished:
            return finished.value

    async def _run(self, call: Call) -> Any:
        if call.mutates and self._durability is None:
            await self.check_durability()
        try:
            try:
                return await self._send(call, load=False)
            except redis_errors.NoScriptError:
                return await self._send(call, load=True)
        except _FAILURES as error:
            raise self._translate(error, call) from error

    async def _send(self, call: Call, *, load: bool) -> Any:
        command = _evaluation(call, load=load)
        if not call.mutates or self._durability is not Durability.WAITAOF:
            return await self._client.execute_command(*command)
        # One connection: WAITAOF waits for the writes of its own.
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*command)
            pipeline.execute_command("WAITAOF", 1, 0, self._waitaof_ms)
            return _confirmed(await pipeline.execute(raise_on_error=False), self._where)

    async def _ask(self, question: Question) -> list[Any]:
        try:
            if not self._settings.cluster:
                return [await self._answer(question)]
            await self._client.initialize()
            primaries = self._client.get_primaries()
            return [await self._answer(question, target_nodes=node) for node in primaries]
        except _FAILURES as error:
            raise unavailable(error, self._where) from error

    async def _answer(self, question: Question, **target: Any) -> Any:
        try:
            return await self._client.execute_command(*question.command, **target)
        except redis_errors.ResponseError:
            return None


def _blocking(
    operation: Callable[Concatenate[Operations, P], Program[T]],
) -> Callable[Concatenate[SyncRegistry, P], T]:
    @functools.wraps(operation)
    def method(self: SyncRegistry, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.drive(operation(self.operations, *args, **kwargs))

    return method


class SyncRegistry(_Base):
    """The same registry without await. Safe to share between threads."""

    def __init__(self, url: str, settings: RegistrySettings | None = None) -> None:
        super().__init__(url, settings)
        try:
            self._client = open_sync(self._url, self._settings)
        except _FAILURES as error:
            raise unavailable(error, self._where) from error

    hello = _blocking(Operations.hello)
    list_tenants = _blocking(Operations.list_tenants)
    register = _blocking(Operations.register)
    configure = _blocking(Operations.configure)
    join = _blocking(Operations.join)
    leave = _blocking(Operations.leave)
    commit = _blocking(Operations.commit)
    ack = _blocking(Operations.ack)
    report = _blocking(Operations.report)
    renew = _blocking(Operations.renew)
    expire = _blocking(Operations.expire)
    reserve = _blocking(Operations.reserve)
    release = _blocking(Operations.release)
    set_quota = _blocking(Operations.set_quota)
    get = _blocking(Operations.get)
    list_scopes = _blocking(Operations.list_scopes)
    snapshot = _blocking(Operations.snapshot)
    rebuild = _blocking(Operations.rebuild)

    def events(self, tenant: str, *, after: str) -> Iterator[Event]:
        """See Registry.events. Blocks while nothing happens; reads on a connection of its own."""
        cursor = Cursor(self._keyspace, tenant, after=after)
        cursor.stand(*self.drive(self._tail(cursor)))
        client, certain = open_sync(self._url, replace(self._settings, retries=0)), True
        try:
            while True:
                try:
                    if not certain:  # idle, or another server may answer at this address now
                        cursor.stand(*self.drive(self._tail(cursor)))
                    reply = client.xread(**_xread(cursor, self._settings))
                    certain = bool(reply)
                except (RegistryUnavailable, *_FAILURES):
                    certain = False
                    time.sleep(_RECONNECT_S)
                    continue
                yield from cursor.read(reply)
        finally:
            client.close()

    def check_durability(self) -> Durability:
        """See AsyncRegistry.check_durability."""
        inquiry = inquire(self._settings, self._where)
        try:
            question = next(inquiry)
            while True:
                question = inquiry.send(self._ask(question))
        except StopIteration as decided:
            self._durability = decided.value
            return decided.value

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def _tail(self, cursor: Cursor) -> Program[tuple[str, str, int]]:
        return self.operations.tail(
            cursor.tenant, incarnation=cursor.incarnation, after=cursor.after
        )

    def drive(self, program: Program[T]) -> T:
        """See AsyncRegistry.drive."""
        try:
            call = next(program)
            while True:
                call = program.send(self._run(call))
        except StopIteration as finished:
            return finished.value

    def _run(self, call: Call) -> Any:
        if call.mutates and self._durability is None:
            self.check_durability()
        try:
            try:
                return self._send(call, load=False)
            except redis_errors.NoScriptError:
                return self._send(call, load=True)
        except _FAILURES as error:
            raise self._translate(error, call) from error

    def _send(self, call: Call, *, load: bool) -> Any:
        command = _evaluation(call, load=load)
        if not call.mutates or self._durability is not Durability.WAITAOF:
            return self._client.execute_command(*command)
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command(*command)
            pipeline.execute_command("WAITAOF", 1, 0, self._waitaof_ms)
            return _confirmed(pipeline.execute(raise_on_error=False), self._where)

    def _ask(self, question: Question) -> list[Any]:
        try:
            if not self._settings.cluster:
                return [self._answer(question)]
            primaries = self._client.get_primaries()
            return [self._answer(question, target_nodes=node) for node in primaries]
        except _FAILURES as error:
            raise unavailable(error, self._where) from error

    def _answer(self, question: Question, **target: Any) -> Any:
        try:
            return self._client.execute_command(*question.command, **target)
        except redis_errors.ResponseError:
            return None
