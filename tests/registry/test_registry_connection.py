"""Reaching the registry: URLs, users, TLS, and clear words when it cannot be reached."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import AbstractConnection as Connection

from retire.protocol.errors import InvalidField, RegistryUnavailable
from retire.registry.calls import script
from retire.registry.client import AsyncRegistry, SyncRegistry
from retire.registry.keys import Keyspace
from retire.registry.settings import RegistrySettings, checked_url

QUICK = RegistrySettings(timeout_s=0.3, retries=1, backoff_max_s=0.05)
DURABLE = ("appendonly", "yes", "appendfsync", "always")


async def test_an_unreachable_server_is_named(connect):
    """Host and port are in the message, the password is not; it ends after bounded retries."""
    started = time.monotonic()
    registry = connect("redis://me:secret@127.0.0.1:1/0", QUICK)
    with pytest.raises(RegistryUnavailable) as error:
        await registry.hello("acme", term=1)
    assert "registry at redis://127.0.0.1:1 cannot be used" in str(error.value)
    assert "connecting to 127.0.0.1:1" in str(error.value)
    assert "secret" not in str(error.value)
    assert error.value.details() == {"retry_after_s": 1}
    assert time.monotonic() - started < 3
    missing = connect("unix:///nowhere/registry.sock", QUICK)
    with pytest.raises(RegistryUnavailable, match=r"registry at unix:///nowhere/registry\.sock"):
        await missing.hello("acme", term=1)


def test_an_unreachable_cluster_is_named():
    """The blocking cluster client looks for its nodes at once."""
    with pytest.raises(RegistryUnavailable, match=r"registry at redis://127\.0\.0\.1:1 "):
        SyncRegistry("redis://127.0.0.1:1", RegistrySettings(cluster=True, retries=0))


async def test_a_hanging_server_times_out(connect, valkey, settings):
    """A stopped server process does not hold the caller; when it goes on, so does the client."""
    registry = connect(valkey.url, QUICK)
    await registry.hello("acme", term=1)
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(RegistryUnavailable, match="did not answer in time"):
            await registry.hello("acme", term=1)
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    assert time.monotonic() - started < 3
    assert await registry.hello("acme", term=1)


def test_a_connection_reset_before_its_first_command(monkeypatch, valkey):
    """uvloop says so with a RuntimeError, which redis-py does not know: an error of the tree."""
    greet = Connection.on_connect_check_health

    async def late(self: Any, *args: Any, **options: Any) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0.05)  # until the loop has closed it
        await greet(self, *args, **options)

    async def ask() -> None:
        registry = AsyncRegistry(valkey.url, QUICK)
        try:
            await registry.list_tenants()
        finally:
            await registry.close()

    monkeypatch.setattr(Connection, "on_connect_check_health", late)
    with pytest.raises(RegistryUnavailable, match="cannot be used: unable to perform operation"):
        uvloop.run(ask())


@pytest.mark.parametrize(
    ("url", "cluster"),
    [("http://x", False), ("localhost:6379", False), ("", False), ("ftp://u:secret@h", False)],
)
def test_a_wrong_url_is_refused(url, cluster):
    """The scheme is checked before anything connects, and a password is not repeated."""
    with pytest.raises(InvalidField, match=r"^registry\.url must be redis://") as error:
        checked_url(url, cluster=cluster)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("changed", [{"timeout_s": 0}, {"retries": -1}, {"backoff_max_s": 0}])
def test_wrong_settings_name_the_field(changed):
    """A bad number stops at construction."""
    with pytest.raises(InvalidField, match=rf"^registry\.{next(iter(changed))} must be"):
        RegistrySettings(**changed)


@pytest.mark.parametrize("prefix", ["", "a{b}:", "a*", "x\n"])
def test_a_prefix_cannot_break_the_key_layout(prefix):
    """Braces would forge a hash tag, patterns an ACL."""
    with pytest.raises(InvalidField, match=r"^registry\.prefix must be"):
        Keyspace(prefix)


async def test_user_and_password(connect, make_server):
    """A user from the URL is used; a wrong one is refused in words."""
    server = make_server("redis7", *DURABLE)
    with server.admin() as admin:
        admin.execute_command("ACL SETUSER", "me", "on", ">right", "~*", "&*", "+@all")
        admin.execute_command("ACL SETUSER", "default", "off")
    assert await connect(url(server, "me:right@"), QUICK).hello("acme", term=1)
    for wrong in ("me:wrong@", "nobody:right@", ""):
        with pytest.raises(RegistryUnavailable, match="refused the user name or password"):
            await connect(url(server, wrong), QUICK).hello("acme", term=1)


def url(server, user):
    return server.url.replace("redis://", f"redis://{user}")


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate of 127.0.0.1 and its key."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=registry", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


async def test_tls(connect, make_server, certificate, server_class):
    """rediss:// with the server's CA works, an unknown CA is refused."""
    key, cert = certificate
    port = str(free_tls_port())
    options = ("tls-port", port, "tls-cert-file", str(cert), "tls-key-file", str(key))
    make_server(
        "redis7", *DURABLE, *options, "tls-ca-cert-file", str(cert), "tls-auth-clients", "no"
    )
    trusting = connect(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={cert}", QUICK)
    assert await trusting.hello("acme", term=1)
    following = trusting.events("acme", after="$")
    await following.aclose()
    with pytest.raises(RegistryUnavailable, match="(?i)certificate"):
        await connect(f"rediss://127.0.0.1:{port}/0", QUICK).hello("acme", term=1)


def free_tls_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_replica_and_a_full_server_say_what_is_wrong(connect, make_server):
    """READONLY and OOM name the cause; nothing was acknowledged."""
    server = make_server("valkey9", *DURABLE)
    registry = connect(server.url, QUICK)
    await registry.hello("acme", term=1)
    with server.admin() as admin:
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(RegistryUnavailable, match="is out of memory and keeps what it has"):
            await registry.hello("more", term=1)
        admin.config_set("maxmemory", "0")
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(RegistryUnavailable, match="is a read-only replica"):
            await registry.hello("more", term=1)


async def test_foreign_data_under_our_keys_is_not_taken_for_ours(connect, store, settings):
    """A key of another type is an error of the registry, not a crash."""
    with store.admin() as admin:
        admin.set(f"{settings.prefix}registry", "something else")
    with pytest.raises(RegistryUnavailable, match="WRONGTYPE"):
        await connect(store.url, settings).hello("acme", term=1)


def test_every_script_is_packaged_and_documented():
    """Each operation is one file that opens with its contract and loads with the prelude."""
    from importlib import resources

    names = {
        path.name.removesuffix(".lua")
        for path in (resources.files("retire.registry") / "scripts").iterdir()
        if path.name.endswith(".lua")
    }
    assert len(names) == 22
    for name in names - {"prelude"}:
        loaded = script(name)
        own = (resources.files("retire.registry") / "scripts" / f"{name}.lua").read_text("utf-8")
        header = own.partition("]]")[0]
        assert own.startswith("--[[\n"), name
        assert "KEYS[1]" in header, name
        assert "Returns" in header, name
        assert "rror" in header, name
        assert loaded.source.endswith(own)


async def test_close_leaves_no_connection(valkey, settings):
    """After close() the server has no client of ours left."""
    registry = AsyncRegistry(valkey.url, settings)
    await registry.hello("acme", term=1)
    following = registry.events("acme", after="$")
    with valkey.admin() as admin:
        assert len(admin.client_list()) >= 2
        await following.aclose()
        await registry.close()
        for _ in range(100):
            if len(admin.client_list()) == 1:
                break
            time.sleep(0.01)
        assert len(admin.client_list()) == 1
