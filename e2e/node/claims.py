"""Volumes for claims: a folder and a PersistentVolume each, as a provisioner makes them. asyncio.

kube-controller-manager binds them. Must never touch a volume that it did not make.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any, Final

import httpx

from e2e.api import ApiError

if TYPE_CHECKING:
    from e2e.node.world import World

Object = dict[str, Any]
STORAGE_CLASS: Final = "local-folder"
_PROVISIONER: Final = "retire.dev/local-folder"
_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_PERIOD_S: Final = 0.5
_MODE: Final = 0o755  # as a fresh file system: fsGroup opens it


class Claims:
    """The provisioner of the default storage class."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def install(self) -> None:
        """The storage class, default for claims that name none."""
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
        body = {
            "metadata": {"name": STORAGE_CLASS, "annotations": annotations},
            "provisioner": _PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        }
        with contextlib.suppress(ApiError):  # an earlier harness left it
            await self._world.api.call("POST", _CLASSES, body)

    async def uninstall(self) -> None:
        """The class, and the volumes that are left."""
        for volume in self._made():
            await self._delete(volume)
        await self._try("DELETE", f"{_CLASSES}/{STORAGE_CLASS}")

    async def run(self) -> None:
        """For ever: a volume for each claim that waits; none for one that is gone."""
        while True:
            for claim in self._world.all("claims"):
                if self._waits(claim):
                    await self._provide(claim)
            for volume in self._made():
                if volume["status"].get("phase") == "Released":
                    await self._delete(volume)
            await asyncio.sleep(_PERIOD_S)

    def _waits(self, claim: Object) -> bool:
        spec = claim["spec"]
        ours = spec.get("storageClassName") == STORAGE_CLASS and not spec.get("volumeName")
        return ours and self._world.get("volumes", "", _name(claim)) is None

    def _made(self) -> list[Object]:
        volumes = self._world.all("volumes")
        return [one for one in volumes if one["spec"].get("storageClassName") == STORAGE_CLASS]

    async def _provide(self, claim: Object) -> None:
        metadata, name = claim["metadata"], _name(claim)
        folder = self._world.claims / name
        folder.mkdir(exist_ok=True)
        folder.chmod(_MODE)
        reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
        spec = {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",  # we delete it ourselves
            "hostPath": {"path": str(folder)},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
        }
        await self._try("POST", _VOLUMES, {"metadata": {"name": name}, "spec": spec})

    async def _delete(self, volume: Object) -> None:
        name = volume["metadata"]["name"]
        await self._try("DELETE", f"{_VOLUMES}/{name}")
        shutil.rmtree(self._world.claims / name, ignore_errors=True)

    async def _try(self, method: str, path: str, body: Object | None = None) -> None:
        """The next round tries again."""
        with contextlib.suppress(ApiError, httpx.TransportError):
            await self._world.api.call(method, path, body)


def _name(claim: Object) -> str:
    return f"pvc-{claim['metadata']['uid']}"
