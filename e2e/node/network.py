"""The pods' network: a bridge, and a network namespace with one veth for each pod. asyncio.

Addresses are of 198.18.0.0/15, which is set apart for measurements, so they collide with nobody's.
A block for each harness: a /18 whose addresses are all the host's own, where services answer (256
for each pod), and a /24 for the pods. The host reaches pods, pods reach each other and the host;
nothing reaches further. Needs CAP_NET_ADMIN, ``ip`` and ``nsenter``. A pod's namespace lives as
long as its pause process, which ends with the harness.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.binaries import ROOT

PODS_MAX: Final = 60
_BASE: Final = ipaddress.ip_address("198.18.0.0")
_BLOCKS: Final = 4
_BLOCK_SIZE: Final = 2**15
_SERVICES: Final = 2**14  # the first half of a block
_FIRST_POD: Final = 2  # 1 is the bridge
_ENTER: Final = (sys.executable, "-S", "-m", "e2e.node.enter", "pause", "{}")
_GATEWAY: Final = 255  # its number among the hardware addresses, after the pods'
_NOWHERE: Final = "02:00:00:00:00:01"  # frames to this address are lost in silence


class NetworkFailed(Exception):
    """The host refuses a network for the pods; ip's own words are in the text."""


def ip(commands: list[str], pid: int | None = None) -> None:
    """``ip -batch``, in the network namespace of ``pid`` if there is one."""
    inside = () if pid is None else ("nsenter", "-t", str(pid), "-n")
    done = subprocess.run(
        [*inside, "ip", "-batch", "-"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NetworkFailed(f"{'; '.join(commands)}: {done.stderr.strip()}")


class Network:
    """One harness's block and bridge."""

    def __init__(self) -> None:
        self._block = _claim_block()
        self._numbers: set[int] = set()

    @property
    def bridge(self) -> str:
        """Its name on the host."""
        return _bridge(self._block)

    def open(self) -> None:
        """Put the bridge up; NetworkFailed when the host does not allow it."""
        ip(
            [
                f"address add {self.gateway}/24 dev {self.bridge}",
                f"link set {self.bridge} up",
                f"route replace local {self._address(0)}/18 dev lo",  # one may be left behind
            ]
        )

    def close(self) -> None:
        """After the last pod."""
        with contextlib.suppress(NetworkFailed):
            ip([f"route del local {self._address(0)}/18 dev lo"])
        with contextlib.suppress(NetworkFailed):
            ip([f"link del {self.bridge}"])

    @property
    def gateway(self) -> str:
        """The host, as pods see it."""
        return self._address(_SERVICES + 1)

    def service_address(self, pod: int, service: int) -> str:
        """Where a service answers for one pod."""
        assert 0 < service < 256, "more services than this network has addresses for"
        return self._address(256 * pod + service)

    async def join(self) -> PodNetwork:
        """A namespace for one pod."""
        number = next(n for n in range(PODS_MAX) if n not in self._numbers)
        self._numbers.add(number)
        try:
            return await self._connect(number)
        except BaseException:
            self._numbers.discard(number)
            raise

    async def leave(self, pod: PodNetwork) -> None:
        """The pod is gone, and so is its namespace."""
        assert pod.pause.stdin is not None
        pod.pause.stdin.close()
        await pod.pause.wait()
        self._numbers.discard(pod.number)

    async def _connect(self, number: int) -> PodNetwork:
        pause = await asyncio.create_subprocess_exec(
            *_ENTER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        assert pause.stdout is not None
        word = (await pause.stdout.readline()).decode().strip()
        if word != "ready":
            raise NetworkFailed(f"no network namespace: {word or 'not allowed'}")
        made = PodNetwork(number, self._address(_SERVICES + _FIRST_POD + number), pause, self)
        # A few commands of milliseconds each: not worth a thread.
        ip(
            [
                f"link add {made.device} type veth peer name eth0"
                f" address {_mac(self._block, number)} netns {pause.pid}",
                f"link set {made.device} master {self.bridge} up",
            ]
        )
        ip(
            [
                "link set lo up",
                f"address add {made.address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self.gateway}",
            ],
            pause.pid,
        )
        return made

    def _address(self, offset: int) -> str:
        return str(_BASE + self._block * _BLOCK_SIZE + offset)


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """One pod's place in the network."""

    number: int
    address: str
    pause: asyncio.subprocess.Process
    network: Network

    @property
    def device(self) -> str:
        """The host's end of the veth."""
        return f"{self.network.bridge}p{self.number}"

    @property
    def namespace(self) -> str:
        """To be entered by the pod's containers."""
        return f"/proc/{self.pause.pid}/ns/net"

    def isolate(self) -> None:
        """Unplug the pod: nothing arrives, nothing leaves, nobody is told."""
        ip([f"link set {self.device} nomaster"])

    def rejoin(self) -> None:
        """Plug it in again."""
        ip([f"link set {self.device} master {self.network.bridge}"])

    def lose(self, address: str) -> None:
        """What the pod sends to another pod is lost in silence."""
        ip([f"neighbor replace {address} lladdr {_NOWHERE} nud permanent dev eth0"], self.pause.pid)

    def find(self, address: str) -> None:
        """The end of ``lose``."""
        with contextlib.suppress(NetworkFailed):  # it was not lost
            ip([f"neighbor del {address} dev eth0"], self.pause.pid)


def _mac(block: int, number: int) -> str:
    """Of an address, for ever: neighbours that knew the last pod there find the next one."""
    return f"02:52:45:54:{block:02x}:{number:02x}"


def _bridge(block: int) -> str:
    return f"retire{block}"


def _claim_block() -> int:
    """A block whose bridge did not exist, or whose owner is gone; creates the bridge."""
    reasons: list[str] = []
    for block in range(_BLOCKS):
        name = _bridge(block)
        if _abandoned(name):
            with contextlib.suppress(NetworkFailed):
                ip([f"link del {name}"])
        try:
            # A bridge without an address of its own takes another whenever a pod comes or goes,
            # and the pods' packets to their gateway are lost for a while.
            mac = _mac(block, _GATEWAY)
            ip(
                [
                    f"link add {name} address {mac} type bridge",
                    f"link set {name} alias {os.getpid()}",
                ]
            )
        except NetworkFailed as error:
            reasons.append(str(error))
        else:
            return block
    raise NetworkFailed("no bridge can be made: " + "; ".join(reasons))


def _abandoned(name: str) -> bool:
    """Whether a bridge of a harness that did not end well is there."""
    alias = Path(f"/sys/class/net/{name}/ifalias")
    owner = alias.read_text().strip() if alias.exists() else ""
    return owner.isdigit() and not Path(f"/proc/{owner}").exists()
