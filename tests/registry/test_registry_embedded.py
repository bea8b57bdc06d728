"""The embedded server: private, supervised, clean to stop, and gone with its parent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retire.protocol.errors import InvalidField, RegistryUnavailable
from retire.protocol.versions import ScopeKey
from retire.registry.client import SyncRegistry
from retire.registry.embedded import EmbeddedServer
from retire.registry.settings import Durability, RegistrySettings

KEY = ScopeKey("acme", "plan")


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_durable_private_and_keeps_its_data(tmp_path):
    """Owner-only folder, socket and configuration; fsync always; data survives a clean stop."""
    folder = tmp_path / "a folder" / "r"
    with EmbeddedServer(folder) as server:
        assert (mode(folder), mode(folder / "registry.sock")) == (0o700, 0o700)
        assert mode(folder / "valkey.conf") == 0o600
        registry = SyncRegistry(server.url)
        assert registry.check_durability() is Durability.FSYNC_ALWAYS
        incarnation = registry.hello("acme", term=1)
        registry.register(KEY, term=1, epoch=3)
        registry.close()
        pid = server.pid
    assert pid is not None
    assert not is_running(pid)
    with EmbeddedServer(folder) as server:
        registry = SyncRegistry(server.url, RegistrySettings(create_when_empty=False))
        assert registry.hello("acme", term=1) == incarnation
        assert registry.get(KEY).version.epoch == 3
        registry.close()
        server.stop()  # and once more at the end: stopping twice is fine


def test_tcp_needs_its_password(tmp_path):
    """On loopback TCP other users could connect, so a password is required and is in the URL
    only."""
    with EmbeddedServer(tmp_path / "r", tcp=True) as server:
        registry = SyncRegistry(server.tcp_url)
        registry.hello("acme", term=1)
        registry.close()
        _secret, _, address = server.tcp_url.partition("@")
        bare = SyncRegistry(f"redis://{address}", RegistrySettings(retries=0))
        with pytest.raises(RegistryUnavailable, match="refused the user name or password"):
            bare.hello("acme", term=1)
        bare.close()
        command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert server.tcp_url.split(":")[2].split("@")[0].encode() not in command_line


def test_a_killed_child_comes_back_with_its_data(tmp_path):
    """kill -9 of the child: the same client goes on by itself."""
    with EmbeddedServer(tmp_path / "r") as server:
        registry = SyncRegistry(server.url, RegistrySettings(retries=8))
        registry.hello("acme", term=1)
        registry.register(KEY, term=1, epoch=5)
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.pid not in (None, first) and server.answers())
        assert server.restarts == 1
        assert registry.get(KEY).version.epoch == 5
        registry.close()


def test_without_restart_a_killed_child_stays_down(tmp_path):
    """Control: the restart above is the supervisor's doing."""
    with EmbeddedServer(tmp_path / "r", restart=False) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None)
        time.sleep(0.3)
        assert server.pid is None
        assert not server.answers()


PARENT = """
import sys, time
from pathlib import Path
from retire.registry.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_killed_parent(tmp_path):
    """SIGKILL of the parent ends the child; its folder is then free for the next one."""
    folder = tmp_path / "r"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    with pytest.raises(RegistryUnavailable, match="is in use by another server"):
        EmbeddedServer(folder, ready_timeout_s=0.2).start()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(child))
    with EmbeddedServer(folder) as server:
        assert server.answers()


def test_a_server_that_cannot_start_shows_its_log(tmp_path):
    """A corrupt AOF is refused by the server; the error carries the log's last lines."""
    folder = tmp_path / "r"
    with EmbeddedServer(folder):
        pass
    for file in (folder / "appendonlydir").glob("*.incr.aof"):
        file.write_bytes(b"this is no AOF\n" * 10)
    server = EmbeddedServer(folder, ready_timeout_s=5)
    with pytest.raises(RegistryUnavailable, match=r"(?s)did not start; its log ends with:.*AOF"):
        server.start()
    assert server.pid is None


def test_a_folder_too_deep_for_a_socket_is_refused(tmp_path):
    """The limit of a Unix socket's path is named before anything starts."""
    with pytest.raises(InvalidField, match="registry folder must be short enough"):
        EmbeddedServer(tmp_path / ("x" * 120))
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryUnavailable, match="registry folder .*file"):
        EmbeddedServer(tmp_path / "file").start()
