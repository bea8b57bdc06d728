"""A real registry and sidecar with a story: gates that ack, receipts completed as the API does."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import httpx

from e2e.sidecar_nodes import Gate, Sidecar
from retire.protocol.codec import receipt_from_dict, receipt_to_dict
from retire.protocol.contract import PinLease, StopReason, Tier
from retire.protocol.versions import ScopeKey, Version
from retire.registry.embedded import EmbeddedServer
from retire.sidecar import convert
from retire.sidecar.client import Mutation, NodeClient
from retire.sidecar.pb import node_pb2 as pb

ANSWER_S = 60.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class PinningGate(Gate):
    """Says how many blocks of a scope are pinned, as an engine does."""

    def __init__(self, sidecar: Sidecar, name: str = "g1") -> None:
        super().__init__(sidecar, name)
        self.pinned: dict[str, int] = {}

    async def fence(self, command: pb.Fence) -> pb.Fenced:
        self.fences.append(command)
        return _fenced(convert.key_from(command.key))

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        reply = await super().inspect(command)
        reply.pinned_blocks = self.pinned.get(command.key.scope, 0)
        return reply


class World:
    """One node with two API processes in miniature, driven from a thread of its own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server = EmbeddedServer(folder / "registry")
        self._folder, self._env = folder, env

    def __enter__(self) -> Self:
        self._thread.start()
        server = self._server.__enter__()
        env = {"RETIRE_HTTP_LISTEN": "127.0.0.1:0", "RETIRE_FENCE_WAIT_S": "1", **self._env}
        self.sidecar = Sidecar(self._folder, server.url, node="node-a", **env).start()
        self.run(self.sidecar.until_held())
        self.gates = [self.run(self._attach(name)) for name in ("api-1", "api-2")]
        self.run(self.sidecar.until(lambda status: status.ready))
        found = re.search(r"http=(\d+)", self.sidecar.log.read_text())
        assert found is not None
        self.url = f"http://127.0.0.1:{found[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self.gates:
            self.run(gate.__aexit__())
        self.sidecar.end()
        self._server.__exit__(None, None, None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    async def _attach(self, name: str) -> PinningGate:
        """Made where it runs: its channel belongs to the loop."""
        gate = PinningGate(self.sidecar, name)
        await gate.__aenter__()
        return gate

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """To its end, in the loop of the gates."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S)

    def live(self, **headers: str) -> dict[str, Any]:
        """What the page is told."""
        answer = httpx.get(f"{self.url}/live.json", headers=headers, timeout=ANSWER_S)
        answer.raise_for_status()
        return answer.json()

    def join(self, *keys: ScopeKey) -> None:
        """Open scopes."""

        async def work() -> None:
            client = self.gates[0].client
            for start in range(0, len(keys), 50):
                await asyncio.gather(*(client.join(key) for key in keys[start : start + 50]))

        self.run(work())

    def supersede(self, key: ScopeKey, epoch: int = 0, *, certified: int = 7168) -> None:
        """One whole SUPERSEDE, its receipt completed as an API process completes it."""
        self.run(self._supersede(key, epoch, certified))

    async def _supersede(self, key: ScopeKey, epoch: int, certified: int) -> None:
        client = self.gates[0].client
        await client.join(key)
        mutation = Mutation(
            Version(1, epoch),
            idempotency_key=f"{time.time_ns()}",
            traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
        )
        async for _ in client.supersede(key, mutation):
            continue
        await _complete(client, key, mutation.idempotency_key, certified)


async def _complete(client: NodeClient, key: ScopeKey, idempotency_key: str, kept: int) -> None:
    """ALIGN and RESUME, as the engine would have told them."""
    view = await client.inspect(key)
    receipt = receipt_from_dict(json.loads(view.receipts_json[0]))
    fence = receipt.stages_ms["fence"]
    whole = replace(
        receipt,
        stages_ms={**receipt.stages_ms, "align": fence + 1.3, "resume": fence + 4.1},
        inheritable_tokens=kept + 12,
        certified_tokens=kept,
        frontier_tokens=kept + 40,
        first_difference=kept + 12,
        stop_reason=StopReason.FIRST_DIFFERENCE,
        successor_request_id=f"chatcmpl-{key.scope[:20]}",
        pin=PinLease(448, Tier.HBM, 600.0, 1600),
    )
    await client.report(
        key,
        receipt.to_version,
        receipt_json=json.dumps(receipt_to_dict(whole)),
        idempotency_key=idempotency_key,
    )


def _fenced(key: ScopeKey) -> pb.Fenced:
    return pb.Fenced(
        participants=[
            pb.Participant(
                node="node-a", boot_id="b", pp_rank=0, tp_rank=rank, kv_group=0,
                frontier_tokens=7208, closed=True,
            )
            for rank in range(2)
        ],
        requests=[
            pb.RetiredRequest(
                request_id=f"chatcmpl-{key.scope[:20]}-old", state="decode", prompt_tokens=7000,
                frontier_tokens=7208, last_published_index=207,
            )
        ],
        residual_ms=2.6,
        branch="layer_stop",
        predicted_ms=40.0,
        pinned_blocks=448,
        tier="hbm",
        quota_left=1600,
    )  # fmt: skip
