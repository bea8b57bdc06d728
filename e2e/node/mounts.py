"""The file system of one container: an overlay over the host's root, volumes, /proc, /dev/shm.

Called by ``e2e.node.enter`` in the container's own namespaces, never in the host's. Must never
import anything but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
from pathlib import Path
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_RDONLY, _NOSUID, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 32, 4096, 0x4000, 1 << 18
_DETACH: Final = 2
_SHM_OPTIONS: Final = "size=64m,mode=1777"  # what a container gets by default
_SHM: Final = "/dev/shm"


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    """mount(2); OSError names the target."""
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    data = options.encode() if options is not None else None
    if _LIBC.mount(*words, flags, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {kind or source} at {target}: {os.strerror(number)}")


def enter_root(spec: dict[str, Any]) -> None:
    """Everything: afterwards ``/`` is the container's. Paths are resolved inside, as links lead."""
    mount("none", "/", None, _REC | _PRIVATE)  # nothing below is seen by the host
    layer, root = spec["layer"], f"{spec['layer']}/merged"
    options = f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work"
    mount("overlay", root, "overlay", 0, options)
    mount("/dev", f"{root}/dev", None, _BIND)
    mount("/sys", f"{root}/sys", None, _BIND)
    mount("proc", f"{root}/proc", "proc")
    for path in spec["software"]:
        _reveal(root, path)
    sources = [os.open(one["source"], os.O_PATH) for one in spec["mounts"]]
    software = _hidden(root, spec)
    host = _change_root(root)
    targets = [one["target"] for one in spec["mounts"]]
    if not any(target == _SHM or target.startswith(f"{_SHM}/") for target in targets):
        mount("tmpfs", _SHM, "tmpfs", _NOSUID, _SHM_OPTIONS)
    for one, source in zip(spec["mounts"], sources, strict=True):
        _bind(source, Path(one["target"]), read_only=one["read_only"])
        os.close(source)
    for path, source in software.items():
        _bind(source, Path(path), read_only=True)
        os.close(source)
    _leave(host)
    if spec["read_only_root"]:
        mount("none", "/", None, _REMOUNT | _BIND | _RDONLY)


def _change_root(root: str) -> int:
    """For whoever enters the namespace later as well, which chroot would not do.

    Returns the host's root, open: it lies hidden below ``/`` until ``_leave``.
    """
    host = os.open("/", os.O_PATH)
    os.chdir(root)
    if _LIBC.syscall(_PIVOT_ROOT[platform.machine()], b".", b".") != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot change the root: {os.strerror(number)}", root)
    os.chdir("/")
    return host


def _leave(host: int) -> None:
    """What was not mounted from the host by now is out of reach."""
    os.fchdir(host)
    _LIBC.umount2(b".", _DETACH)
    os.chdir("/")
    os.close(host)


def _hidden(root: str, spec: dict[str, Any]) -> dict[str, int]:
    """Software below a volume's mount path (a checkout in /tmp), open: it must lie above it."""
    targets = [one["target"].rstrip("/") for one in spec["mounts"]]
    return {
        path: os.open(root + path, os.O_PATH)
        for path in spec["software"]
        if any(path.startswith(f"{target}/") for target in targets)
    }


def _bind(source: int, target: Path, *, read_only: bool) -> None:
    """A volume, open as ``source``, at its mount path, which is made when there is none."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(f"/proc/self/fd/{source}", str(target), None, _BIND | _REC)
    if read_only:
        mount("none", str(target), None, _REMOUNT | _BIND | _RDONLY)


def _reveal(root: str, path: str) -> None:
    """Software may lie on another file system, or in a folder that only root may pass."""
    point = _mount_point(path)
    if point != "/":
        mount(point, root + point, None, _BIND | _REC)
        return
    for folder in Path(path).parents:
        mode = stat.S_IMODE((inside := Path(root + str(folder))).stat().st_mode)
        if mode & 0o011 != 0o011:
            inside.chmod(mode | 0o011)  # in the overlay, not on the host


def _mount_point(path: str) -> str:
    """The deepest mount point above a path."""
    found = "/"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if (path == point or path.startswith(f"{point}/")) and len(point) > len(found):
            found = point
    return found
