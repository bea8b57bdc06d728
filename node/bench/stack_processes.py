"""Which process of a running stack is which, from /proc. Linux only; must never signal one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from retire.cli.stack.guard import processes

COMPONENTS: Final = ("registry", "sidecar", "api", "enginecore")
_COMMANDS: Final = {
    "retire.cli.stack.registry": "registry",
    "retire.sidecar.main": "sidecar",
}


def component_pids(supervisor: int) -> dict[str, int]:
    """Component -> pid below the supervisor's pid; absent: it does not run now."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in processes():
        children.setdefault(parent, []).append(pid)
    found: dict[str, int] = {}
    for guard in children.get(supervisor, []):
        for command in children.get(guard, []):
            found |= _of(command, children)
    return found


def _of(command: int, children: dict[int, list[int]]) -> dict[str, int]:
    argv = command_line(command)
    name = next((name for word, name in _COMMANDS.items() if word in argv), None)
    below = [pid for pid in children.get(command, []) if not _is_tracker(pid)]
    if name == "registry":  # the server itself, below the process that prints its log
        return {name: below[0]} if below else {}
    if name is not None:
        return {name: command}
    if "--model" not in argv:
        return {}
    return {"api": command} | ({"enginecore": below[0]} if below else {})


def below(pid: int) -> list[int]:
    """The children of a process, those that only track resources left out."""
    return [one for one, parent, _ in processes() if parent == pid and not _is_tracker(one)]


def command_line(pid: int) -> list[str]:
    """The argv of a process; empty once it has ended."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode("utf-8", "replace").split("\0")


def _is_tracker(pid: int) -> bool:
    return any("resource_tracker" in word for word in command_line(pid))
