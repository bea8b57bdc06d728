"""The mailbox file on disk: where it is, who may hold it, whether it is ours. Knows no slots.

Must never import anything of Retire but ``layout`` and the protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retire.mailbox import layout
from retire.protocol.errors import InvalidField, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ENV: Final = "RETIRE_MAILBOX"
DEFAULT_DIRECTORY: Final = Path("/dev/shm")
FILE_MODE: Final = 0o600
_HOST_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LOCK_ATTEMPTS: Final = 16
_SERIAL_PLAUSIBLE_MAX: Final = 2**63  # a damaged counter must not eat the serials that are left


def resolve_path(path: str | os.PathLike[str] | None = None) -> Path:
    """The mailbox file: ``path``, else ``$RETIRE_MAILBOX``; a bare name lies in /dev/shm."""
    text = os.environ.get(ENV) if path is None else os.fspath(path)
    if not text:
        raise InvalidField(
            ENV, text, "the path of the sidecar's mailbox file, for example /dev/shm/retire"
        )
    return Path(text) if "/" in text else DEFAULT_DIRECTORY / text


def host_boot_words() -> tuple[int, int]:
    """The machine's boot id as two words; CLOCK_MONOTONIC values compare only within one boot."""
    digits = _HOST_BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")
    return int(digits[:16], 16), int(digits[16:], 16)


def header_fault(words: memoryview[int], size: int) -> str | None:
    """Why this is not a usable mailbox of this layout and boot; None when it is."""
    if words[layout.H_LAYOUT] != layout.LAYOUT_VERSION:
        return f"has layout {words[layout.H_LAYOUT]}, not {layout.LAYOUT_VERSION}"
    capacity = words[layout.H_CAPACITY]
    if not 0 < capacity <= layout.CAPACITY_MAX:
        return f"names an impossible capacity, {capacity}"
    if size != layout.file_bytes(capacity):
        return f"is {size} bytes long, not {layout.file_bytes(capacity)}"
    host = (words[layout.H_HOST_BOOT], words[layout.H_HOST_BOOT + 1])
    return None if host == host_boot_words() else "was written in another boot of this machine"


def boot_id(words: memoryview[int]) -> str:
    """Identity of the file behind a mapping: 32 hex digits."""
    return f"{words[layout.H_BOOT]:016x}{words[layout.H_BOOT + 1]:016x}"


def read_header(fd: int, path: Path) -> memoryview[int]:
    """A copy of the header's words; raises InvalidField when the file is no mailbox at all."""
    raw = os.pread(fd, layout.HEADER_BYTES, 0)
    if len(raw) < layout.HEADER_BYTES:
        raise InvalidField(
            ENV, str(path), f"a Retire mailbox; this file is too short ({len(raw)} bytes)"
        )
    words = memoryview(raw).cast("Q")
    if words[layout.H_MAGIC] != layout.MAGIC:
        raise InvalidField(
            ENV, str(path), "a Retire mailbox; this file is something else, name another path"
        )
    return words


def open_for_reading(path: Path, *, writable: bool = False) -> int:
    """A descriptor of a valid mailbox. Unavailable when absent, InvalidField when it is not one."""
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise Unavailable(
            f"mailbox {path} does not exist; start the sidecar first ({ENV} names it)"
        ) from error
    except OSError as error:
        raise InvalidField(
            ENV, str(path), f"a file this user may open ({error.strerror})"
        ) from error
    try:
        fault = header_fault(read_header(fd, path), os.fstat(fd).st_size)
        if fault is not None:
            raise InvalidField(ENV, str(path), f"a usable mailbox; it {fault}, restart the sidecar")
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock_for_writing(path: Path, *, capacity: int, wall_ns: Callable[[], int]) -> int:
    """Open and lock the mailbox, made new when absent or unusable; returns its descriptor.

    Unavailable while another writer lives. An unusable mailbox is replaced by a file under a new
    inode: who maps the old one sees closed gates. A file that is no mailbox is left alone.
    """
    for _ in range(_LOCK_ATTEMPTS):
        fd = _open_locked(path)
        if fd is None:
            _install(path, capacity=capacity, first_serial=wall_ns(), replace=False)
            continue
        try:
            header = read_header(fd, path)
            fault = header_fault(header, os.fstat(fd).st_size)
            if fault is None and header[layout.H_CAPACITY] == capacity:
                return fd
            if header[layout.H_LAYOUT] == layout.LAYOUT_VERSION:
                os.pwrite(fd, bytes(layout.WORD_BYTES), layout.H_DEADLINE * layout.WORD_BYTES)
            floor = min(header[layout.H_NEXT_SERIAL], _SERIAL_PLAUSIBLE_MAX)
            _install(path, capacity=capacity, first_serial=max(wall_ns(), floor), replace=True)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise Unavailable(f"mailbox {path} keeps changing; is another sidecar starting on this node?")


def reserve_page(fd: int, capacity: int, index: int) -> None:
    """Allocate what the 64 slots around ``index`` need.

    A full file system is an OSError here instead of a SIGBUS at some later store.
    """
    page = index // layout.SLOTS_PER_PAGE * layout.SLOTS_PER_PAGE
    count = min(layout.SLOTS_PER_PAGE, capacity - page)
    for offset, size in (
        (layout.SLOTS_OFFSET, layout.SLOT_BYTES),
        (layout.names_offset(capacity), layout.NAME_BYTES),
        (layout.overlaps_offset(capacity), layout.WORD_BYTES),
    ):
        os.posix_fallocate(fd, offset + page * size, count * size)


def read_tenures(fd: int, capacity: int) -> memoryview[int]:
    """A copy of w4 of every slot, read without filling the holes of the file."""
    raw = os.pread(fd, capacity * layout.SLOT_BYTES, layout.SLOTS_OFFSET)
    return memoryview(raw).cast("Q")[layout.W_TENURE :: layout.SLOT_WORDS]


def map_words(fd: int, length: int, *, offset: int = 0, writable: bool = False) -> memoryview[int]:
    """A shared mapping as 64-bit words; it lives as long as the view or any slice of it."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return memoryview(mmap.mmap(fd, length, access=access, offset=offset)).cast("Q")


@contextlib.contextmanager
def closing(fd: int) -> Generator[int]:
    """Close a descriptor at the end of the block; a mapping of it lives on."""
    try:
        yield fd
    finally:
        os.close(fd)


def _open_locked(path: Path) -> int | None:
    """A locked descriptor of the file at ``path``; None when there is none (any more)."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidField(
            ENV, str(path), f"a file this user may write ({error.strerror})"
        ) from error
    try:
        _claim(fd, path)
        if is_at(fd, path):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _claim(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise InvalidField(ENV, str(path), "a regular file owned by this user")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Unavailable(
            f"mailbox {path} is held by a running sidecar; stop it, or name another file in {ENV}"
        ) from None
    os.fchmod(fd, FILE_MODE)


def is_at(fd: int, path: Path) -> bool:
    """Whether ``path`` still names the file behind ``fd``."""
    return identity(path) == identity(fd)


def identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of a path (the link itself) or descriptor; None when the path is empty."""
    try:
        status = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _install(path: Path, *, capacity: int, first_serial: int, replace: bool) -> None:
    """Put an empty mailbox at ``path`` in one step; unless ``replace``, whoever came first wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.ftruncate(fd, layout.file_bytes(capacity))
        os.posix_fallocate(fd, 0, layout.HEADER_BYTES)
        os.pwrite(fd, _new_header(capacity, first_serial), 0)
        if replace:
            os.rename(draft, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _new_header(capacity: int, first_serial: int) -> bytes:
    words = memoryview(bytearray(layout.HEADER_BYTES)).cast("Q")
    words[layout.H_MAGIC] = layout.MAGIC
    words[layout.H_LAYOUT] = layout.LAYOUT_VERSION
    words[layout.H_CAPACITY] = capacity
    words[layout.H_NEXT_SERIAL] = first_serial
    for at, value in enumerate((*_random_words(), *host_boot_words()), start=layout.H_BOOT):
        words[at] = value
    return words.tobytes()


def _random_words() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)
