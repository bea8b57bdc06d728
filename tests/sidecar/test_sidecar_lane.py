"""The lane beside the Attach stream: used when it is there; else the stream takes over."""

from __future__ import annotations

import asyncio
import stat

import pytest
from sidecar_world import LEASE_S, Gate, Sidecar, Story, collected, eventually

from retire.protocol.versions import ScopeKey, Version
from retire.sidecar import gate_link
from retire.sidecar.lane import FRAME_MAX, Frames, GateEnd, frame
from retire.sidecar.pb import node_pb2 as pb

FIRST = Version(1, 0)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[GateEnd]:
    """The gate ends made while the test runs."""
    made: list[GateEnd] = []

    class Kept(GateEnd):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(gate_link, "GateEnd", Kept)
    return made


async def _connected(ends: list[GateEnd]) -> GateEnd:
    async def end() -> GateEnd | None:
        return ends[0] if ends and ends[0].transport is not None else None

    return await eventually(end, lambda e: e is not None, 5)


async def test_commands_take_the_lane(
    calm: Sidecar, ends: list[GateEnd], monkeypatch: pytest.MonkeyPatch
):
    """With a lane neither Switch nor Fence needs the stream; the socket is the owner's alone."""
    streamed: list[str] = []

    async def refuse(self: gate_link.GateLink, command: pb.GateCommand) -> None:
        streamed.append(command.WhichOneof("body") or "")

    monkeypatch.setattr(gate_link.GateLink, "_answer", refuse)
    await calm.until_held()
    async with Gate(calm) as gate:
        await _connected(ends)
        await asyncio.sleep(0.1)
        story = Story(gate.client, ScopeKey("lane", "taken"))
        await story.join()
        answers = await story.supersede(FIRST)
        assert answers.outcomes == {"a/g1": "acked"}
        assert not answers.fenced.missing and streamed == []
    assert stat.S_IMODE((calm.folder / "node.sock.lane").stat().st_mode) == 0o600


async def test_a_broken_lane_is_asked_again_on_the_stream(calm: Sidecar, ends: list[GateEnd]):
    """A lane that breaks between Switch and its ack costs no lease: the stream brings it again."""
    await calm.until_held()
    async with Gate(calm) as gate:
        end = await _connected(ends)
        await asyncio.sleep(0.1)
        story = Story(gate.client, ScopeKey("lane", "broken"))
        await story.join()
        gate.hold.clear()
        events = story.events(FIRST)
        await anext(events)

        async def asked() -> int:
            return len(gate.switches)

        await eventually(asked, lambda n: n == 1, 5)
        end.close()
        await eventually(asked, lambda n: n == 2, 5)
        gate.hold.set()
        answers = await collected(events)
        assert answers.outcomes == {"a/g1": "acked"}
        assert answers.took_s("unpublishable") < LEASE_S
        assert (await story.supersede(Version(1, 1))).outcomes == {"a/g1": "acked"}


async def test_without_a_lane_the_stream_carries_everything(
    calm: Sidecar, monkeypatch: pytest.MonkeyPatch
):
    """A gate that never connects its lane is served as well."""

    async def never(self: gate_link.GateLink, gate: str, path: str) -> None:
        del self, gate, path

    monkeypatch.setattr(gate_link.GateLink, "_connect", never)
    await calm.until_held()
    async with Gate(calm) as gate:
        story = Story(gate.client, ScopeKey("lane", "none"))
        await story.join()
        answers = await story.supersede(FIRST)
        assert answers.outcomes == {"a/g1": "acked"} and not answers.fenced.missing


async def test_garbage_ends_the_lane_only(calm: Sidecar):
    """A stranger's bytes close its connection; the node goes on."""
    await calm.until_held()
    reader, writer = await asyncio.open_unix_connection(str(calm.folder / "node.sock.lane"))
    writer.write((FRAME_MAX + 1).to_bytes(4, "big") + b"x" * 64)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    reader, writer = await asyncio.open_unix_connection(str(calm.folder / "node.sock.lane"))
    writer.write(frame(pb.GateReport(hello=pb.Hello(gate="nobody"))))
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await calm.until_held()


def test_frames_survive_any_cut():
    """However the bytes arrive, the same messages come out; an oversized one is refused."""
    sent = [pb.GateCommand(command=n, switch=pb.Switch(slot_index=n)) for n in range(1, 40)]
    wire = b"".join(frame(message) for message in sent)
    for step in (1, 2, 3, 7, len(wire)):
        frames = Frames()
        got = [b for at in range(0, len(wire), step) for b in frames.feed(wire[at : at + step])]
        assert [pb.GateCommand.FromString(b) for b in got] == sent
    with pytest.raises(ValueError, match="frame of"):
        list(Frames().feed((FRAME_MAX + 1).to_bytes(4, "big")))
