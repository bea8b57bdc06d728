"""What all pods of the harness share: the API, the watched collections, images, folders, network.

Must never hold a pod's state: that is ``pods.py``.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.node.informer import AsyncApi, Informer
from e2e.node.network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.node.containers import Delays
    from e2e.node.images import Image

Object = dict[str, Any]
# Collections that are watched, by the name the harness gives them.
COLLECTIONS: Final = {
    "pods": "/api/v1/pods",
    "services": "/api/v1/services",
    "config_maps": "/api/v1/configmaps",
    "secrets": "/api/v1/secrets",
    "claims": "/api/v1/persistentvolumeclaims",
    "volumes": "/api/v1/persistentvolumes",
}


class World:
    """One harness's surroundings. ``close`` removes the folders."""

    def __init__(self, kubeconfig: Path, images: Sequence[Image], delays: Delays) -> None:
        self.api = AsyncApi(kubeconfig)
        self.images, self.delays = images, delays
        self.changed = asyncio.Event()  # something that pods look at is another
        self.disk = Path(tempfile.mkdtemp(prefix="retire-node-"))
        self.memory = Path(tempfile.mkdtemp(prefix="retire-node-", dir="/dev/shm"))
        self.logs = self.disk / "logs"
        self.claims = self.disk / "claims"
        for folder in (self.logs, self.claims):
            folder.mkdir()
        self.informers = {
            name: Informer(self.api, path, self._note) for name, path in COLLECTIONS.items()
        }
        self.network = Network()

    def get(self, collection: str, namespace: str, name: str) -> Object | None:
        """From a watched collection."""
        return self.informers[collection].get(namespace, name)

    def all(self, collection: str) -> list[Object]:
        """Everything of a watched collection."""
        return [*self.informers[collection].items.values()]

    async def close(self) -> None:
        """After every pod."""
        await self.api.close()
        self.network.close()
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def _note(self, _before: Object | None, _after: Object | None) -> None:
        self.changed.set()
