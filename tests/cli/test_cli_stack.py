"""The real registry and the real sidecar under the supervisor: crashes heal, nothing is left."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from retire.cli.stack import children, probes
from retire.cli.stack.layout import layout_of
from retire.cli.stack.supervisor import Supervisor
from retire.protocol.versions import ScopeKey
from retire.sidecar.client import NodeClient


@pytest.fixture
def layout(tmp_path):
    made = layout_of(tmp_path / "s", {})
    made.create()
    yield made
    for path in made.run.iterdir():
        path.unlink()
    made.run.rmdir()


def processes(folder: Path) -> list[tuple[int, str]]:
    """(pid, command line) of processes that name ``folder`` in arguments or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (entry / "environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if int(entry.name) != os.getpid() and (str(folder) in line or str(folder) in environment):
            found.append((int(entry.name), line))
    return found


async def test_registry_and_sidecar_survive_each_others_crashes(layout, tmp_path) -> None:
    """kill -9 of each: it comes back, versions are still there, and stop leaves no process."""
    options = children.StackOptions("m", "127.0.0.1", 1, "plain", 64, None)
    specs = [children.registry(layout), children.sidecar(options, layout)]
    lines: list[tuple[str, str]] = []
    supervisor = Supervisor(specs, lambda *line: lines.append(line))
    key = ScopeKey("default", "plan-7")
    await supervisor.start()
    try:
        async with NodeClient(f"unix:{layout.sidecar_socket}") as node:
            before = (await node.join(key)).version
        for marker, name in (("valkey-server", "registry"), ("retire.sidecar.main", "sidecar")):
            for pid, line in processes(layout.state):
                if marker in line and "guard.py" not in line:
                    os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(said(lines, f"{name} is back"), 10)
        assert await probes.registry_answers(layout.registry_socket)()
        assert await probes.sidecar_ready(layout.sidecar_socket)()
        assert not await probes.plugin_reported(layout.sidecar_socket)  # no engine ran here
        async with NodeClient(f"unix:{layout.sidecar_socket}") as node:
            assert (await joined(node, key)).version >= before
    finally:
        await supervisor.stop()
    assert processes(layout.state) == []


async def said(lines: list[tuple[str, str]], text: str) -> None:
    """Until the supervisor logged ``text``."""
    while ("retire", text) not in lines:
        await asyncio.sleep(0.02)


async def joined(node: NodeClient, key: ScopeKey):
    """A join, tried until the sidecar has found its registry again."""
    from retire.protocol.errors import Unavailable

    for _ in range(100):
        try:
            return await node.join(key)
        except Unavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the sidecar did not recover")


def test_nothing_listens_is_not_ready(tmp_path) -> None:
    """Every probe answers False, and soon, where there is nothing."""

    async def ask() -> list[bool]:
        nowhere = tmp_path / "none.sock"
        asked = (
            probes.sidecar_ready(nowhere),
            probes.registry_answers(nowhere),
            probes.engine_ready("http://127.0.0.1:9", nowhere),
        )
        return [await probe() for probe in asked] + [await probes.plugin_reported(nowhere)]

    assert asyncio.run(asyncio.wait_for(ask(), 5)) == [False] * 4


def test_the_guard_reports_the_commands_status(tmp_path) -> None:
    """Exit status and signal number pass through, as a shell reports them."""
    from retire.cli.stack.supervisor import GUARD

    for code, status in (("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)):
        argv = ["python3", "-I", "-S", str(GUARD), str(os.getpid()), "1", "sh", "-c", code]
        assert subprocess.run(argv, check=False).returncode == status
