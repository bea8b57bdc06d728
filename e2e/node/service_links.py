"""A pod's links to services: their forwarders, its /etc/hosts, what it is cut off from. asyncio."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from e2e.node.forward import Forwarder
from e2e.node.names import KUBERNETES, Key, backends, hosts, key_of, target_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e.node.forward import Address
    from e2e.node.world import World

Object = dict[str, Any]


class ServiceLinks:
    """The services of the cluster as one pod reaches them."""

    def __init__(self, world: World, pod: Object, number: int, hosts_file: Path) -> None:
        self._world, self._pod, self._number = world, pod, number
        self._hosts_file = hosts_file
        self._text = ""
        self._addresses: dict[Key, str] = {}
        self._forwarders: dict[tuple[Key, int], Forwarder] = {}
        self._cut: set[Key] = set()
        self._hosts = itertools.count(1)
        self._syncing = asyncio.Lock()  # a pod that begins and one that is refreshed
        self._stopped = False
        hosts_file.touch()

    async def sync(self) -> None:
        """A forwarder for every service port there is; names for them in the hosts file."""
        async with self._syncing:
            if not self._stopped:
                await self._sync()

    async def _sync(self) -> None:
        services = self._world.all("services")
        wanted = {
            (key_of(service), port["port"]): (service, port)
            for service in services
            if service["spec"].get("clusterIP", "None") not in ("None", "")
            for port in service["spec"].get("ports", [])
            if port.get("protocol", "TCP") == "TCP"
        }
        for gone in [link for link in self._forwarders if link not in wanted]:
            await self._forwarders.pop(gone).stop()
        for link, (service, port) in wanted.items():
            if link not in self._forwarders:
                await self._add(link, service, port)
        text = hosts(self._pod, services, self._addresses, self._world.all("pods"))
        if text != self._text:
            self._text = text
            _overwrite(self._hosts_file, text)

    def address(self, service: Key) -> str:
        """Where it answers for this pod; KeyError for one that has no address of its own."""
        return self._addresses[service]

    def cut(self, service: Key) -> None:
        """Silence between the pod and a service, from now on."""
        self._cut.add(service)
        for (key, _), forwarder in self._forwarders.items():
            if key == service:
                forwarder.cut()

    def heal(self, service: Key) -> None:
        """The end of it."""
        self._cut.discard(service)
        for (key, _), forwarder in self._forwarders.items():
            if key == service:
                forwarder.heal()

    async def stop(self) -> None:
        """Ends every forwarder, for good."""
        async with self._syncing:
            self._stopped = True
            for forwarder in self._forwarders.values():
                await forwarder.stop()
            self._forwarders.clear()

    async def _add(self, link: tuple[Key, int], service: Object, port: Object) -> None:
        key, number = link
        if key not in self._addresses:
            self._addresses[key] = self._world.network.service_address(
                self._number, next(self._hosts)
            )
        listen = (self._addresses[key], number)
        forwarder = Forwarder(listen, self._target(key, service, port))
        if key in self._cut:
            forwarder.cut()
        await forwarder.start()
        self._forwarders[link] = forwarder

    def _target(self, key: Key, service: Object, port: Object) -> Callable[[], Address | None]:
        """Who serves it at the moment of a connection, one after the other."""
        if key == KUBERNETES:
            server = urlsplit(str(self._world.api.http.base_url))
            assert server.hostname is not None
            address = (server.hostname, server.port or 443)
            return lambda: address
        turns = itertools.count()

        def choose() -> Address | None:
            now = self._world.get("services", *key) or service
            found = [
                (backend.address, target)
                for backend in backends(now, self._world.all("pods"))
                if (target := target_port(port, backend)) is not None
            ]
            return found[next(turns) % len(found)] if found else None

        return choose


def _overwrite(path: Path, text: str) -> None:
    """In place: the file is mounted in containers by its inode."""
    with path.open("r+b") as file:
        file.write(text.encode())
        file.truncate()
        os.fchmod(file.fileno(), 0o644)
