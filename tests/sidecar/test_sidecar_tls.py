"""The TCP listener under mutual TLS: who may call, what stays on the Unix socket, rotation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecar_world import Gate, Sidecar, Story, eventually

from e2e.sidecar_certificates import OPERATOR, SERVER, Authority, env, replace
from retire.protocol.errors import Forbidden, InvalidField, RetireError, Unavailable
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.client import NodeClient
from retire.sidecar.config import Tls
from retire.sidecar.pb import node_pb2 as pb
from retire.sidecar.tls import Certificates

FIRST = Version(1, 0)


class Listener:
    """A sidecar with a certificate of its own, and clients with theirs."""

    def __init__(self, folder: Path, start: Callable[..., Sidecar], **more: str) -> None:
        self.folder = folder
        self.ca = Authority.make("retire test")
        self.tls = self.ca.issue(folder / "server", SERVER)
        self.operator = self.ca.issue(folder / "operator", "x.example", OPERATOR)
        self.sidecar = start(RETIRE_LISTEN="127.0.0.1:0", **env(self.tls), **more)
        self.port = 0

    async def ready(self) -> Listener:
        await self.sidecar.until_held()
        self.port = int(self.sidecar.log.read_text().split("tcp=")[1].split()[0])
        return self

    def client(self, tls: Tls | None, server_name: str = SERVER) -> NodeClient:
        return NodeClient(f"127.0.0.1:{self.port}", tls=tls, server_name=server_name)

    async def refused(self, tls: Tls | None, server_name: str = SERVER) -> RetireError:
        async with self.client(tls, server_name) as client:
            with pytest.raises(RetireError) as refused:
                await asyncio.wait_for(client.status(), 20)
        return refused.value


@pytest.fixture
async def listener(folder: Path, start: Callable[..., Sidecar]) -> Listener:
    return await Listener(folder, start).ready()


async def test_only_a_named_client_of_our_ca_gets_in(listener: Listener, folder: Path):
    """The operator's certificate calls; another CA, none, plain text, expired and any other name
    do not. The name must be a DNS name: a URI of the same text is none."""
    other = Authority.make("somebody else")
    async with listener.client(listener.operator) as client:
        assert (await client.status()).node == "a"
    strange = other.issue(folder / "strange", OPERATOR, trust=listener.ca)
    expired = listener.ca.issue(folder / "expired", OPERATOR, days=-1)
    for tls in (strange, expired, None):
        assert isinstance(await listener.refused(tls), Unavailable)  # no connection
    deceived = listener.ca.issue(folder / "deceived", OPERATOR, trust=other)
    assert isinstance(await listener.refused(deceived), Unavailable)  # the client's own refusal
    assert isinstance(await listener.refused(listener.operator, "elsewhere"), Unavailable)
    for name, uri in (("reader.retire.internal", ""), (f"evil.{OPERATOR}", ""), ("", OPERATOR)):
        names = (name,) if name else ()
        found = await listener.refused(listener.ca.issue(folder / "named", *names, uri=uri))
        assert isinstance(found, Forbidden)
        assert "RETIRE_TLS_CLIENTS allows operator.retire.internal" in str(found)


async def test_streams_and_changes_are_refused_to_other_names_too(listener: Listener, folder: Path):
    """Not only Status: every method asks, streaming ones and those that change something."""
    key = ScopeKey("acme", "s")
    reader = listener.ca.issue(folder / "reader", "reader.retire.internal")
    async with Gate(listener.sidecar) as gate, listener.client(reader) as client:
        await gate.client.join(key)
        story = Story(client, key)
        with pytest.raises(Forbidden):
            await story.supersede(FIRST)
        with pytest.raises(Forbidden):
            await anext(client.watch("acme"))
        for attempt in (client.list(), client.inspect(key), client.warm(key, FIRST, b"{}")):
            with pytest.raises(Forbidden):
                await attempt
        for change in (client.cancel, client.pause, client.resume):
            with pytest.raises(Forbidden):
                await change(key, story.mutation(FIRST))
        assert (await gate.client.join(key)).version == FIRST


async def test_what_a_gate_says_is_refused_over_tcp(listener: Listener):
    """Attach, Join, Report and Authenticate are the host's own, whoever calls; the operator
    supersedes all the same."""
    key = ScopeKey("acme", "s")
    async with Gate(listener.sidecar) as gate, listener.client(listener.operator) as client:
        await gate.client.join(key)
        attempts = (
            client.join(key),
            client.report(key, FIRST, receipt_json="{}", idempotency_key="k"),
            client.authenticate("token"),
            client.attach(lambda: pb.Hello(gate="g"), gate, on_welcome=lambda _: None),
        )
        for attempt in attempts:
            with pytest.raises(Forbidden, match="over the node's Unix socket"):
                await asyncio.wait_for(attempt, 20)
        assert (await Story(client, key).supersede(FIRST)).to == Version(1, 1)


async def test_further_clients_are_named_in_the_settings(
    folder: Path, start: Callable[..., Sidecar]
):
    """RETIRE_TLS_CLIENTS replaces the default."""
    listener = await Listener(folder, start, RETIRE_TLS_CLIENTS="a.example, b.example").ready()
    async with listener.client(listener.ca.issue(folder / "b", "b.example")) as client:
        assert (await client.status()).node == "a"
    assert isinstance(await listener.refused(listener.operator), Forbidden)


async def test_certificates_rotate_while_a_stream_runs(listener: Listener):
    """New server certificate, then a new CA: new connections see them at once, the stream of an
    old one goes on. The client notices that its own files were replaced."""
    key = ScopeKey("acme", "rotating")
    async with Gate(listener.sidecar) as gate, listener.client(listener.operator) as old:
        joined = await gate.client.join(key)
        watching = old.watch("acme", after=1)
        assert (await anext(watching)).kind == "register"
        listener.ca.issue(listener.tls.cert.parent, SERVER, "renewed.retire.internal")
        async with listener.client(listener.operator, "renewed.retire.internal") as renewed:
            assert (await renewed.status()).node == "a"
        second = Authority.make("the second CA")
        assert not old.outdated
        second.issue(listener.tls.cert.parent, SERVER)
        async with listener.client(listener.operator) as late:  # of the CA before
            with pytest.raises(Unavailable):
                await late.status()
        tls = second.issue(listener.operator.cert.parent, OPERATOR)
        assert old.outdated
        async with listener.client(tls) as new:
            assert (await Story(new, key).supersede(joined.version)).to == Version(1, 1)
        record = await asyncio.wait_for(anext(watching), 20)
        assert (record.kind, record.to.epoch) == ("supersede", 1)
        await watching.aclose()


async def test_half_a_rotation_changes_nothing(listener: Listener, folder: Path):
    """A certificate without its key is logged and not used; once the key is there, both are."""
    next_pair = listener.ca.issue(folder / "next", SERVER, "next.retire.internal")
    replace(listener.tls.cert, next_pair.cert.read_bytes())
    async with listener.client(listener.operator) as client:
        assert (await client.status()).node == "a"

    async def log() -> str:
        return listener.sidecar.log.read_text()

    await eventually(log, lambda text: "the old ones stay in use" in text, 10)
    assert isinstance(
        await listener.refused(listener.operator, "next.retire.internal"), Unavailable
    )
    replace(listener.tls.key, next_pair.key.read_bytes())
    async with listener.client(listener.operator, "next.retire.internal") as client:
        assert (await client.status()).node == "a"


async def test_handshakes_in_the_middle_of_rotations(listener: Listener):
    """Connections made while the files are replaced again and again all succeed: each sees one
    consistent set."""

    def rotate() -> None:
        listener.ca.issue(listener.tls.cert.parent, SERVER)

    async def rotating() -> None:
        for _ in range(5):
            await asyncio.to_thread(rotate)
            await asyncio.sleep(0.05)  # keys take the processor that handshakes need

    running = asyncio.create_task(rotating())
    handshakes = 0
    while not running.done() or handshakes < 25:
        async with listener.client(listener.operator) as client:
            assert (await client.status()).node == "a"
        handshakes += 1
    await running
    print(f"5 rotations under {handshakes} handshakes")


def test_files_that_do_not_fit_are_refused_at_start(folder: Path):
    """The variable that is wrong is named."""
    ca = Authority.make("a")
    good, other = ca.issue(folder / "good", SERVER), ca.issue(folder / "other", SERVER)
    with pytest.raises(InvalidField, match="^RETIRE_TLS_CERT must be the PEM certificate of"):
        Certificates(Tls(good.cert, other.key, good.ca)).credentials()
    empty = folder / "empty"
    empty.write_text("")
    with pytest.raises(InvalidField, match="^RETIRE_TLS_CA must be the PEM certificates of a CA"):
        Certificates(Tls(good.cert, good.key, empty)).credentials()
