"""The bundled registry for real: its configuration and users on a server, TLS by hand-shake."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
import redis
from chart_render import CHART, secret, template

from retire.protocol.versions import ScopeKey
from retire.registry.client import SyncRegistry
from retire.registry.embedded import server_binary

MODEL = ("--set", "model=m")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """URL by role of a server that runs as the chart's would; without TLS, which ours lacks."""
    folder = tmp_path_factory.mktemp("registry")
    rendered = template(*MODEL, "--set", "registry.bundled.tls=false")
    port = free_port()
    conf = rendered.one("ConfigMap", "retire-registry")["data"]["valkey.conf"]
    conf = conf.replace("/data", str(folder)).replace("/etc/valkey-users", str(folder))
    (folder / "valkey.conf").write_text(conf.replace("port 6379", f"port {port}"))
    server = rendered.one("Secret", "retire-registry-server")
    (folder / "users.acl").write_text(secret(server, "users.acl"))
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen([server_binary(), folder / "valkey.conf"], stdout=log)
    clients = rendered.one("Secret", "retire-registry-clients")
    host = "retire-registry.serving.svc:6379"
    urls = {
        role: secret(clients, f"{role}-url").replace(host, f"127.0.0.1:{port}")
        for role in ("operator", "sidecar", "reader")
    }
    try:
        wait_for(port, child, folder / "log")
        yield urls
    finally:
        child.terminate()
        child.wait(30)


def say(port: int, *commands: str) -> list[str]:
    """Inline commands on a connection of their own, and the first line of each answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        stream = wire.makefile("rw", newline="\r\n")
        answers = []
        for command in commands:
            stream.write(f"{command}\n")
            stream.flush()
            answers.append(stream.readline().strip())
        return answers


def wait_for(port: int, child: subprocess.Popen, log: Path) -> None:
    """As the pod's own probe asks: PING by the user probe."""
    for _ in range(600):
        assert child.poll() is None, log.read_text()
        try:
            if say(port, "AUTH probe any", "PING") == ["+OK", "+PONG"]:
                return
        except OSError:
            threading.Event().wait(0.05)
    raise AssertionError(log.read_text())


def test_the_roles_do_their_work(registry):
    """The operator opens the registry, a sidecar registers, a reader reads it."""
    key = ScopeKey("acme", "plan")
    with closing(SyncRegistry(registry["operator"])) as operator:
        operator.hello("acme", term=1)
        operator.set_quota("acme", term=1, blocks=5)
    with closing(SyncRegistry(registry["sidecar"])) as sidecar:
        sidecar.hello("acme", term=1)
        sidecar.register(key, term=1)
    with closing(SyncRegistry(registry["reader"])) as reader:
        assert str(reader.get(key).version) == "1.0"


def test_the_smoke_test_passes_and_would_fail(registry):
    """files/smoke.py's question to the registry; control: a user that may write fails it."""
    source = (CHART / "files" / "smoke.py").read_text().split("deadline = ")[0]
    names: dict = {}
    exec(compile(source, "smoke.py", "exec"), names)
    names["os"].environ["REGISTRY"] = registry["reader"]
    assert names["asked_registry"]() == "answers; a reader may not write"
    names["os"].environ["REGISTRY"] = registry["operator"]
    with pytest.raises(SystemExit, match="check its ACL rules"):
        names["asked_registry"]()
    del names["os"].environ["REGISTRY"]


def test_nobody_else_is_let_in(registry):
    """No password, a wrong one, the probe beyond PING."""
    host = registry["reader"].partition("@")[2]
    with (
        redis.Redis.from_url(f"redis://{host}") as nobody,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        nobody.get("retire:registry")
    with (
        redis.Redis.from_url(f"redis://sidecar:wrong@{host}") as wrong,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        wrong.ping()
    port = int(host.removesuffix("/0").rpartition(":")[2])
    asked = say(port, "AUTH probe any", "GET retire:registry", "CONFIG GET dir", "PING")
    assert [one.split()[0] for one in asked] == ["+OK", "-NOPERM", "-NOPERM", "+PONG"]


def test_the_server_is_durable_and_never_evicts(variant):
    """The directives that the registry's promises rest on, and no plain port beside TLS."""
    conf = variant("default").one("ConfigMap", "retire-registry")["data"]["valkey.conf"]
    lines = conf.splitlines()
    for wanted in (
        *("appendonly yes", "appendfsync always", "maxmemory-policy noeviction"),
        *("port 0", "tls-port 6379", "tls-auto-reload-interval 30"),
    ):
        assert wanted in lines
    program = server_binary().read_bytes()
    unknown = [name for line in lines if (name := line.split()[0]).encode() not in program]
    assert unknown == [], "directives that this Valkey does not know"


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """TLS over a socket pair; raises what the client or the server objects to."""
    left, right = socket.socketpair()
    left.settimeout(30)
    right.settimeout(30)
    failed: list[Exception] = []

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as wrapped:
                wrapped.sendall(b"x")
        except (ssl.SSLError, OSError) as error:
            failed.append(error)
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=name) as wrapped:
            assert wrapped.recv(1) == b"x"
    finally:
        right.close()
        thread.join(60)
    if failed:
        raise failed[0]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """``of(release, holder, server)``: a context made from the chart's Secret of that holder."""
    releases = [template(*MODEL), template(*MODEL)]
    folder = tmp_path_factory.mktemp("tls")

    def of(release: int, holder: str, *, server: bool) -> ssl.SSLContext:
        one = releases[release].one("Secret", f"retire-{holder}-tls")
        for key in ("tls.crt", "tls.key", "ca.crt"):
            (folder / key).write_text(secret(one, key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.load_verify_locations(folder / "ca.crt")
        if server:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return of


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        ("sidecar", "sidecar.retire.internal"),
        ("registry", "retire-registry.serving.svc"),
        ("registry", "localhost"),
    ],
)
def test_the_charts_certificates_are_trusted(holder: str, name: str, contexts):
    """The operator is let in and believes the name; both sides show a certificate."""
    server = contexts(0, holder, server=True)
    handshake(server, contexts(0, "operator", server=False), name)


def test_a_wrong_name_or_another_releases_certificate_is_refused(contexts):
    """Control: the name is checked, and the authority of each release is its own."""
    server, client = contexts(0, "sidecar", server=True), contexts(0, "operator", server=False)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, "operator.retire.internal")
    with pytest.raises(ssl.SSLError):
        handshake(server, contexts(1, "operator", server=False), "sidecar.retire.internal")
