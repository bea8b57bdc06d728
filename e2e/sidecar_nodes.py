"""A node without an engine: the real sidecar, and gates that attach to it as API processes do.

For tests and benches. Owns what it starts below one folder. Must never import vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from retire.mailbox import GateState, MailboxView, SlotRef
from retire.protocol.versions import ScopeKey
from retire.sidecar import convert
from retire.sidecar.client import NodeClient
from retire.sidecar.pb import node_pb2 as pb


class Sidecar:
    """One sidecar process of a node, restartable on the same files."""

    def __init__(self, folder: Path, url: str, *, node: str = "a", **env: str) -> None:
        self.folder, self.node = folder / node, node
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.socket = self.folder / "node.sock"
        self.mailbox = self.folder / "mailbox"
        self.log = self.folder / "log"
        self.history = self.folder / "history"
        self.process: subprocess.Popen[bytes] | None = None
        self.env = {
            **{name: value for name, value in os.environ.items() if "RETIRE" not in name},
            "RETIRE_NODE": node,
            "RETIRE_REGISTRY_URL": url,
            "RETIRE_RUN_DIR": str(self.folder),
            "RETIRE_TERM_FILE": str(folder / "term"),
            "RETIRE_HISTORY": str(self.history),
            "RETIRE_SLOTS": "1024",
            **env,
        }

    def program(self) -> list[str]:
        """What the interpreter runs."""
        return ["-m", "retire.sidecar.main"]

    def start(self) -> Self:
        """Without waiting for anything."""
        with self.log.open("ab") as log:
            command = [sys.executable, *self.program()]
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(10)

    @property
    def rss_mb(self) -> float:
        """Resident memory."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def client(self) -> NodeClient:
        """A client on its Unix socket."""
        return NodeClient(f"unix:{self.socket}")

    async def until(
        self, condition: Callable[[pb.StatusReply], bool], timeout_s: float = 40.0
    ) -> pb.StatusReply:
        """The first status that satisfies ``condition``."""
        async with self.client() as client:
            return await eventually(lambda: _status(client), condition, timeout_s)

    async def until_held(self) -> pb.StatusReply:
        """Until it holds its lease."""
        return await self.until(lambda s: s.lease == "held")


async def _status(client: NodeClient) -> pb.StatusReply | None:
    with contextlib.suppress(Exception):
        return await client.status()
    return None


async def eventually(
    ask: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool], s: float
) -> Any:
    """Ask again until the answer holds; fails after ``s`` seconds, showing the last answer."""
    end, answer = time.monotonic() + s, None
    while time.monotonic() < end:
        answer = await ask()
        if answer is not None and holds(answer):
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not become true in {s} s; last: {answer}")


class Gate:
    """An API process in miniature: attaches, reads the mailbox, acks Switch, answers Fence."""

    def __init__(self, sidecar: Sidecar, name: str = "g1", *, engine: str = "e1") -> None:
        self.sidecar, self.name, self.engine = sidecar, name, engine
        self.client = sidecar.client()
        self.welcomed = asyncio.Event()
        self.switches: list[pb.Switch] = []
        self.fences: list[pb.Fence] = []
        self.quotas: list[pb.Quota] = []
        self.scopes: list[ScopeKey] = []
        self.live: dict[str, int] = {}  # scope -> live requests, for Inspect
        self.last_published: dict[str, int] = {}
        self.hold = asyncio.Event()  # cleared: a Switch is not acked until it is set
        self.hold.set()
        self.fence_reply = pb.Fenced()
        self.warms: list[pb.Warm] = []
        self.warm_reply = pb.WarmDone()
        self.warm_error: Exception | None = None
        self.hold_warm = asyncio.Event()
        self.hold_warm.set()
        self._view: MailboxView | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gate:
        self._task = asyncio.create_task(
            self.client.attach(self._hello, self, on_welcome=lambda _: self.welcomed.set())
        )
        await asyncio.wait_for(self.welcomed.wait(), 15)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.client.close()
        if self._view is not None:
            self._view.detach()

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            gate=self.name,
            pid=os.getpid(),
            engine_boot_id=self.engine,
            vllm_version="0.26.0",
            model=f"model-of-{self.engine}",
            fingerprint="f" * 8,
            block_size=16,
            num_blocks=512,
            scopes=[convert.key_to(key) for key in self.scopes],
        )

    def may_publish(self, slot: pb.SlotRef) -> bool:
        """The gate check of a real gate, on the real file."""
        return self.view.check(slot.index, slot.stamp)

    def state(self, slot: pb.SlotRef) -> GateState:
        """What the word says, in words."""
        return self.view.gate(SlotRef(slot.index, slot.tenure, slot.stamp))

    @property
    def view(self) -> MailboxView:
        """The node's mailbox, as this process maps it."""
        if self._view is None:
            self._view = MailboxView.attach(self.sidecar.mailbox)
        return self._view

    async def switch(self, command: pb.Switch) -> dict[str, int]:
        """Ack, unless held."""
        self.switches.append(command)
        await self.hold.wait()
        return self.last_published

    async def fence(self, command: pb.Fence) -> pb.Fenced:
        """The reply that the test chose."""
        self.fences.append(command)
        return self.fence_reply

    async def inspect(self, command: pb.Inspect) -> pb.InspectReply:
        """The live requests that the test chose."""
        count = self.live.get(command.key.scope, 0)
        return pb.InspectReply(requests=[pb.LiveRequest(request_id=f"r{n}") for n in range(count)])

    async def warm(self, command: pb.Warm) -> pb.WarmDone:
        """The reply that the test chose, or its error."""
        self.warms.append(command)
        await self.hold_warm.wait()
        if self.warm_error is not None:
            raise self.warm_error
        return self.warm_reply

    def quota(self, command: pb.Quota) -> None:
        """Noted."""
        self.quotas.append(command)
