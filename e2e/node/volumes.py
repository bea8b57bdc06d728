"""A pod's volumes as folders of the host, kept up to date as the kubelet does.

emptyDir (Memory on tmpfs), ConfigMap, Secret, projected (with service account tokens), downward API
and claims. Files of live sources are swapped all at once through the ``..data`` link. Owns the
folders below one pod's own; must never mount anything, nor ask the API server except through
``Supply``.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from e2e.node.environment import ConfigError, decoded, entries, field_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Object = dict[str, Any]
_DATA: Final = "..data"
_FILE_MODE: Final = 0o644
_TOKEN_MODE: Final = 0o600
_OPEN: Final = 0o777  # an emptyDir is for every user of the pod


class Supply(Protocol):
    """Where the contents come from. None: there is no such object (yet)."""

    def config_map(self, name: str) -> Object | None:
        """Of the pod's namespace."""
        ...

    def secret(self, name: str) -> Object | None:
        """Of the pod's namespace."""
        ...

    def token(self, source: Object) -> str | None:
        """A bound service account token for a ``serviceAccountToken`` source."""
        ...

    def claim_folder(self, name: str) -> Path | None:
        """Where the volume lies that is bound to a claim."""
        ...


@dataclass(frozen=True, slots=True)
class File:
    """One file of a live volume."""

    content: bytes
    mode: int


class Volumes:
    """The volumes of one pod."""

    def __init__(self, pod: Object, disk: Path, memory: Path, supply: Supply) -> None:
        self._pod = pod
        self._disk, self._memory = disk, memory
        self._supply = supply
        self._written: dict[str, dict[str, File]] = {}
        context = pod["spec"].get("securityContext", {})
        self._group: int | None = context.get("fsGroup")
        self._user = _only_user(pod)

    def sync(self) -> None:
        """Make or refresh every volume; ConfigError when one's source is missing."""
        for volume in self._pod["spec"].get("volumes", []):
            if (files := self._files(volume)) is not None:
                self._write(volume["name"], files)
            elif "emptyDir" in volume:
                self._empty(self.folder(volume["name"]))
            else:
                self.folder(volume["name"])

    def folder(self, name: str) -> Path:
        """Where a volume lies on the host."""
        volume = next(v for v in self._pod["spec"].get("volumes", []) if v["name"] == name)
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            found = self._supply.claim_folder(claim)
            if found is None:
                raise ConfigError(f'persistentvolumeclaim "{claim}" is not bound')
            self._own(found)
            return found
        if "hostPath" in volume:
            raise ConfigError(f"volume {name}: hostPath is not supported by this harness")
        in_memory = volume.get("emptyDir", {}).get("medium") == "Memory"
        return (self._memory if in_memory else self._disk) / name

    def remove(self) -> None:
        """Everything but claims."""
        shutil.rmtree(self._disk, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)

    def _empty(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(_OPEN)
            self._own(folder)

    def _own(self, folder: Path) -> None:
        """fsGroup: the folder belongs to the group, and so will what is made in it."""
        if self._group is not None and folder.stat().st_gid != self._group:
            os.chown(folder, -1, self._group)
            folder.chmod(0o2775 if folder.stat().st_mode & 0o002 == 0 else 0o2777)

    # --- live files -----------------------------------------------------------------------------

    def _files(self, volume: Object) -> dict[str, File] | None:
        """What a live volume holds now, by path; None for another kind."""
        if "configMap" in volume:
            return self._config_map(volume["configMap"], volume["configMap"]["name"])
        if "secret" in volume:
            return self._secret(volume["secret"], volume["secret"]["secretName"])
        if "downwardAPI" in volume:
            return self._fields(volume["downwardAPI"])
        if "projected" in volume:
            return self._projected(volume["projected"])
        return None

    def _projected(self, projected: Object) -> dict[str, File]:
        mode = projected.get("defaultMode", _FILE_MODE)
        found: dict[str, File] = {}
        for source in projected.get("sources", []):
            if "configMap" in source:
                part = {"defaultMode": mode, **source["configMap"]}
                found |= self._config_map(part, part["name"])
            elif "secret" in source:
                part = {"defaultMode": mode, **source["secret"]}
                found |= self._secret(part, part["name"])
            elif "downwardAPI" in source:
                found |= self._fields({"defaultMode": mode, **source["downwardAPI"]})
            else:
                found |= self._token(source["serviceAccountToken"])
        return found

    def _config_map(self, source: Object, name: str) -> dict[str, File]:
        found = self._supply.config_map(name)
        data = None if found is None else entries(found)
        return _selected(source, f'configmap "{name}"', data)

    def _secret(self, source: Object, name: str) -> dict[str, File]:
        found = self._supply.secret(name)
        return _selected(source, f'secret "{name}"', None if found is None else decoded(found))

    def _fields(self, source: Object) -> dict[str, File]:
        mode = source.get("defaultMode", _FILE_MODE)
        return {
            item["path"]: File(
                field_of(self._pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode)
            )
            for item in source.get("items", [])
        }

    def _token(self, source: Object) -> dict[str, File]:
        token = self._supply.token(source)
        if token is None:
            raise ConfigError("no service account token yet")
        private = self._group is not None or self._user is not None
        return {source["path"]: File(token.encode(), _TOKEN_MODE if private else _FILE_MODE)}

    def _write(self, name: str, files: dict[str, File]) -> None:
        """All at once: a new folder, then the link ``..data`` moved to it."""
        if self._written.get(name) == files:
            return
        root = self._disk / name
        root.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in root.glob("..v*"))
        fresh = root / f"..v{number}"
        while fresh.exists():
            number += 1
            fresh = root / f"..v{number}"
        for path, file in files.items():
            self._write_file(fresh / path, file)
        fresh.mkdir(exist_ok=True)
        before = os.readlink(root / _DATA) if (root / _DATA).is_symlink() else None
        link = root / f"{_DATA}_tmp"
        link.symlink_to(fresh.name)
        link.replace(root / _DATA)
        _link_names(root, files)
        if before is not None:
            shutil.rmtree(root / before, ignore_errors=True)
        self._written[name] = files

    def _write_file(self, path: Path, file: File) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        mode = file.mode
        if self._group is not None:
            os.chown(path, -1, self._group)
            mode |= (mode & 0o400) >> 3
        elif mode == _TOKEN_MODE and self._user is not None:
            os.chown(path, self._user, -1)
        path.chmod(mode)


def _only_user(pod: Object) -> int | None:
    """The user whom the pod says that all its containers run as, if it is one."""
    default = pod["spec"].get("securityContext", {}).get("runAsUser")
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    users = {one.get("securityContext", {}).get("runAsUser", default) for one in containers}
    return users.pop() if len(users) == 1 else None


def _selected(source: Object, what: str, data: Mapping[str, bytes] | None) -> dict[str, File]:
    """The keys that a source asks for, at the paths it gives them."""
    mode, optional = source.get("defaultMode", _FILE_MODE), source.get("optional", False)
    if data is None:
        if optional:
            return {}
        raise ConfigError(f"{what} not found")
    if "items" not in source:
        return {key: File(content, mode) for key, content in data.items()}
    found: dict[str, File] = {}
    for item in source["items"]:
        if item["key"] in data:
            found[item["path"]] = File(data[item["key"]], item.get("mode", mode))
        elif not optional:
            raise ConfigError(f"{what} has no key {item['key']}")
    return found


def _link_names(root: Path, files: dict[str, File]) -> None:
    """What a user opens: ``name -> ..data/name``; names that are gone are removed."""
    names = {path.partition("/")[0] for path in files}
    for link in root.iterdir():
        if not link.name.startswith("..") and link.name not in names:
            link.unlink()
    for name in names:
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"{_DATA}/{name}")
