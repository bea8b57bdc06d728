"""The ACL of each role on the real servers: enough for its work, and a refusal beyond it."""

from __future__ import annotations

import pytest
import redis

from retire.protocol.contract import Policy
from retire.protocol.errors import InvalidField, RegistryUnavailable
from retire.protocol.versions import ScopeKey, Version
from retire.registry.acl import Role, acl_line, acl_rule
from retire.registry.client import SyncRegistry
from retire.registry.interface import CommitKind
from retire.registry.settings import Durability, RegistrySettings

KEY = ScopeKey("acme", "plan")


@pytest.fixture
def registries(store, settings):
    """One client a role, each as its own user; users are removed at the end."""
    opened = {}
    with store.admin() as admin:
        for role in Role:
            rule = acl_rule(
                role,
                password=f"pw-{role.value}",
                prefix=settings.prefix,
                before_7_2=is_before_7_2(admin),
            )
            assert admin.execute_command("ACL SETUSER", role.value, *rule)
            url = store.url.replace("redis://", f"redis://{role.value}:pw-{role.value}@")
            # These users may not read the configuration; the deployment knows it.
            asserted = RegistrySettings(settings.prefix, durability=Durability.FSYNC_ALWAYS)
            opened[role] = SyncRegistry(url, asserted)
        yield opened
        for registry in opened.values():
            registry.close()
        admin.execute_command("ACL DELUSER", *(role.value for role in Role))


def is_before_7_2(admin: redis.Redis) -> bool:
    release = admin.info("server")["redis_version"].split(".")
    return (int(release[0]), int(release[1])) < (7, 2)


def work(registry, name):
    key = ScopeKey("acme", name)
    registry.hello("acme", term=1)
    registry.register(key, term=1)
    registry.register(ScopeKey("acme", name + "-child"), term=1, parent=name)
    registry.configure(key, term=1, policy=Policy.REJECT)
    registry.join(key, term=1, node=name, boot_id="b1")
    registry.renew(name, term=1, boot_id="b1", lease_s=5, tenants={"acme": 0})
    request = {"term": 1, "idempotency_key": name, "body_digest": "d", "by": name}
    commit = registry.commit(CommitKind.SUPERSEDE, key, expected=Version(1, 0), **request)
    registry.ack(key, term=1, node=name, version=commit.to_version)
    about = {"term": 1, "node": name, "version": commit.to_version}
    registry.report(key, **about, receipt_json="{}", idempotency_key=name)
    registry.reserve("acme", term=1, owner=name, blocks=1, lease_s=5)
    registry.release("acme", term=1, owner=name)
    registry.leave(key, term=1, node=name)
    registry.expire(name, term=1, tenants=["acme"])
    return commit


def test_sidecar_and_operator_do_their_work(registries):
    """Every operation of a node; the operator also sets quotas and rebuilds."""
    commit = work(registries[Role.SIDECAR], "n1")
    work(registries[Role.OPERATOR], "n2")
    reader = registries[Role.READER]
    assert reader.get(commit.key).version == commit.to_version
    assert len(reader.list_scopes("acme")) == 4
    assert reader.snapshot("acme").term == 1
    assert reader.list_tenants() == ("acme",)
    assert next(reader.events("acme", after="0-0")).kind == "register"
    registries[Role.OPERATOR].set_quota("acme", term=1, blocks=5)
    registries[Role.OPERATOR].rebuild("acme", term=2, scopes=(), quota_blocks=None)


def test_a_sidecar_cannot_raise_its_own_quota(registries):
    """Quotas are the operator's; a refused rebuild or quota leaves everything as it was."""
    sidecar = registries[Role.SIDECAR]
    work(sidecar, "n1")
    registries[Role.OPERATOR].set_quota("acme", term=1, blocks=5)
    before = sidecar.snapshot("acme")
    for blocks in (100, None):
        with pytest.raises(RegistryUnavailable, match="ACL is too narrow"):
            sidecar.set_quota("acme", term=1, blocks=blocks)
        with pytest.raises(RegistryUnavailable, match="ACL is too narrow"):
            sidecar.rebuild("acme", term=2, scopes=(), quota_blocks=blocks)
    assert sidecar.snapshot("acme") == before


def test_a_reader_cannot_change_anything(registries):
    """Every kind of write is refused and nothing is left behind."""
    work(registries[Role.SIDECAR], "n1")
    reader = registries[Role.READER]
    before = reader.snapshot("acme")
    attempts = (
        lambda: reader.register(ScopeKey("acme", "new"), term=1),
        lambda: reader.join(ScopeKey("acme", "n1"), term=1, node="x", boot_id="b"),
        lambda: reader.renew("x", term=1, boot_id="b", lease_s=1, tenants={"acme": 0}),
        lambda: reader.reserve("acme", term=1, owner="o", blocks=1, lease_s=1),
        lambda: reader.set_quota("acme", term=1, blocks=1),
        lambda: reader.configure(ScopeKey("acme", "n1"), term=1, policy=None),
        lambda: reader.hello("new", term=1),
        lambda: reader.rebuild("acme", term=2, scopes=(), quota_blocks=None),
    )
    for attempt in attempts:
        with pytest.raises(RegistryUnavailable, match="ACL is too narrow"):
            attempt()
    assert reader.snapshot("acme") == before


@pytest.mark.parametrize("role", list(Role))
def test_no_role_reaches_outside(registries, store, settings, role):
    """Other keys and administrative commands are refused to every role."""
    password = f"pw-{role.value}"
    refused = (
        ("GET", "somebody-elses"),
        ("HGET", "retire:{acme}:meta", "term"),  # another registry on the same server
        ("EVAL", "return redis.call('GET', 'somebody-elses')", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "requirepass"),
        ("KEYS", "*"),
        ("ACL", "LIST"),
        ("SHUTDOWN", "NOSAVE"),
        ("CLIENT", "KILL", "TYPE", "normal"),
    )
    with redis.Redis(port=store.port, username=role.value, password=password) as client:
        assert client.ping()
        for command in refused:
            with pytest.raises(
                redis.ResponseError, match="(?i)permission|user executing the script"
            ):
                client.execute_command(*command)
        if role is not Role.OPERATOR:
            with pytest.raises(redis.ResponseError, match="(?i)permission"):
                client.delete(f"{settings.prefix}{{acme}}:meta")


def test_waitaof_works_where_the_user_cannot_read_the_configuration(make_server):
    """On Valkey a sidecar's user detects durability without CONFIG GET; Redis 7.0 asks to be
    told."""
    for kind, expected in (("valkey9", Durability.WAITAOF), ("redis7", None)):
        server = make_server(kind, "appendonly", "yes", "appendfsync", "always")
        with server.admin() as admin:
            rule = acl_rule(Role.SIDECAR, password="pw", before_7_2=is_before_7_2(admin))
            admin.execute_command("ACL SETUSER", "node", *rule)
        registry = SyncRegistry(server.url.replace("redis://", "redis://node:pw@"))
        if expected:
            assert registry.check_durability() is expected
            assert registry.hello("acme", term=1)
        else:
            with pytest.raises(RegistryUnavailable, match="RETIRE_REGISTRY_DURABILITY=fsync"):
                registry.check_durability()
        registry.close()


def test_an_acl_line_never_holds_the_password():
    """The file carries a digest; an empty password is refused."""
    line = acl_line("node", acl_rule(Role.SIDECAR, password="secret"))
    assert line.startswith("user node reset on #")
    assert "secret" not in line
    with pytest.raises(InvalidField, match="password must be not empty"):
        acl_rule(Role.READER, password="")
