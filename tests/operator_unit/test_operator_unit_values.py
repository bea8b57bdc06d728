"""Reading objects, contexts and receipts; merging lines; diffs; settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_world import body

from retire.protocol.codec import receipt_to_dict
from retire.protocol.contract import (
    LATE,
    Contract,
    Equivalence,
    Inherit,
    Receipt,
    StopReason,
    Tier,
)
from retire.protocol.errors import InvalidField
from retire.protocol.versions import ScopeKey, Version
from retire.sidecar.pb import node_pb2 as pb
from retire_operator import context, receipts
from retire_operator.apply import difference
from retire_operator.errors import AccessDenied, ApiUnavailable, ObjectMissing, from_api
from retire_operator.facts import Context, Missing
from retire_operator.mirror import Mirror
from retire_operator.receipts import Line
from retire_operator.resource import ContextSource, Ref, Source, parse
from retire_operator.settings import Settings
from retire_operator.store import ScopeStore

EXAMPLES = Path(__file__).parents[2] / "crds" / "examples"
ENV = {
    "RETIRE_REGISTRY_URL": "redis://127.0.0.1:6379/0",
    "RETIRE_TERM_LEASE": "retire/retire-term",
    "RETIRE_NODE_NAMESPACE": "retire",
}


def test_every_field_of_a_spec_is_read() -> None:
    """The contract is mapped to the protocol's words and units."""
    made = parse(
        body(
            tenant="other",
            poolRef={"name": "big"},
            epoch=4,
            contract={
                "equivalence": "none",
                "inherit": "never",
                "retention": {"tier": "dram", "ttlSeconds": 60},
                "fenceBoundMs": 50,
            },
            onNewInput="rollback",
            parentRef={"name": "root"},
            quota={"pinnedBlocks": 12},
            paused=True,
        )
    )
    assert made.key == ScopeKey("other", "plan")
    assert made.foreign_tenant
    assert made.contract == Contract(Equivalence.NONE, Inherit.NEVER, Tier.DRAM, 60.0, 50.0)
    assert (made.pool, made.epoch, made.parent, made.quota_blocks) == ("big", 4, "root", 12)
    assert made.paused and not made.cancelled


def test_the_tenant_defaults_to_the_namespace() -> None:
    """And an empty spec is a whole one."""
    made = parse(body())
    assert (made.key, made.pool, made.epoch) == (ScopeKey("acme", "plan"), "default", 0)
    assert made.contract == Contract()
    assert not made.foreign_tenant


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"epoch": -1}, "spec.epoch"),
        ({"epoch": True}, "spec.epoch"),
        ({"tenant": "Upper"}, "tenant"),
        ({"contract": {"equivalence": "almost"}}, "spec.contract.equivalence"),
        ({"contract": {"retention": {"ttlSeconds": 0}}}, "contract.ttl_s"),
        ({"contract": {"fenceBoundMs": "fast"}}, "spec.contract.fenceBoundMs"),
        ({"onNewInput": "guess"}, "spec.onNewInput"),
        ({"parentRef": {"name": "plan"}}, "spec.parentRef.name"),
        ({"context": {"model": "m"}}, "spec.context"),
        ({"context": {"inline": {"prompt": "a"}, "secretRef": {"name": "s"}}}, "spec.context"),
        ({"quota": {"pinnedBlocks": -4}}, "spec.quota.pinnedBlocks"),
        ({"paused": "yes"}, "spec.paused"),
        ({"poolRef": "big"}, "spec.poolRef"),
    ],
)
def test_what_the_schema_let_through_is_refused_by_field(spec: dict[str, Any], field: str) -> None:
    """An older CRD in the cluster must not crash the operator."""
    with pytest.raises(InvalidField) as refused:
        parse(body(**spec))
    assert refused.value.field == field


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_can_be_read(path: Path) -> None:
    """Every ServingScope in crds/examples."""
    found = [doc for doc in yaml.safe_load_all(path.read_text()) if doc["kind"] == "ServingScope"]
    assert found
    for doc in found:
        doc["metadata"] |= {"namespace": "acme", "uid": "u"}
        parse(doc)


def from_map(text: str, key: str = "context") -> Context | Missing:
    source = ContextSource(Source.CONFIG_MAP, name="c", key=key)
    return context.from_config_map(source, Ref("acme", "c"), {"context": text})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  ", "is empty"),
        ('{"messages": [', "not valid JSON"),
        ('{"messages": []}', "not empty"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content"),
        ('{"messages": [{"content": "a"}]}', "messages[0].role"),
        ('{"prompt": 7}', "prompt must be a string"),
        ('{"prompt": "a", "messages": [{"role": "r", "content": "c"}]}', "exactly one"),
        ('{"text": "a"}', "exactly one"),
    ],
)
def test_a_bad_context_names_what_is_wrong(text: str, words: str) -> None:
    """Reason ContextInvalid, and where it stands."""
    found = from_map(text)
    assert isinstance(found, Missing)
    assert found.reason == "ContextInvalid"
    assert words in found.message and "ConfigMap acme/c" in found.message


def test_contexts_that_work() -> None:
    """JSON, plain text, text that only begins like JSON; the model is part of the digest."""
    chat = from_map('{"messages": [{"role": "user", "content": "hi"}]}')
    plain, braces = from_map("You are helpful."), from_map("{% template %}")
    assert isinstance(chat, Context) and isinstance(plain, Context) and isinstance(braces, Context)
    assert json.loads(chat.request_json)["messages"][0]["content"] == "hi"
    assert json.loads(plain.request_json) == {"prompt": "You are helpful."}
    assert json.loads(braces.request_json) == {"prompt": "{% template %}"}
    other = context.inline(
        ContextSource(Source.INLINE, inline_json='{"prompt": "You are helpful."}', model="m")
    )
    assert isinstance(other, Context) and other.digest != plain.digest
    assert json.loads(other.request_json)["model"] == "m"


def test_missing_objects_and_keys_are_told_apart() -> None:
    """And a Secret's text is not repeated."""
    source = ContextSource(Source.SECRET, name="s", key="k")
    ref = Ref("acme", "s")
    gone, no_key = context.from_secret(source, ref, None), context.from_secret(source, ref, {})
    binary = context.from_secret(source, ref, {"k": b"\xff\xfe"})
    secret = context.from_secret(source, ref, {"k": b'{"messages": ["hush"'})
    assert isinstance(gone, Missing) and gone.reason == "SecretMissing"
    assert isinstance(no_key, Missing) and no_key.reason == "KeyMissing"
    assert isinstance(binary, Missing) and "UTF-8" in binary.message
    assert isinstance(secret, Missing) and "hush" not in secret.message


def receipt(epoch: int, **changed: Any) -> str:
    made = Receipt(
        key=ScopeKey("acme", "plan"),
        from_version=Version(1, epoch - 1),
        to_version=Version(1, epoch),
        stages_ms={"commit": 1.25, "unpublishable": 2.5, "fence": 9.0},
        inheritable_tokens=64,
        certified_tokens=48,
        stop_reason=StopReason.FIRST_DIFFERENCE,
        residual_ms=3.0,
        trace_id="ab" * 16,
    )
    return json.dumps(receipt_to_dict(replace(made, **changed)))


def record(epoch: int, kind: str = "supersede", **fields: Any) -> pb.TransitionRecord:
    made = pb.TransitionRecord(
        sequence=epoch,
        key=pb.ScopeKey(tenant="acme", scope="plan"),
        kind=kind,
        to=pb.Version(term=1, epoch=epoch),
        at_unix_s=1_790_000_000.0 + epoch,
        **fields,
    )
    getattr(made, "from").CopyFrom(pb.Version(term=1, epoch=max(0, epoch - 1)))
    return made


def test_one_transition_told_many_times_is_one_line() -> None:
    """By the commit's node, by another node, by its receipt, by the status."""
    mirror, made = Mirror(), parse(body())
    for told in (
        record(4),
        record(4, "receipt", receipt_json=receipt(4)),
        record(4, receipt_json=receipt(4), idempotency_key="cr/uid-plan/supersede/4"),
        record(4, "register"),
    ):
        mirror.take(told)
    mirror.take_view(
        pb.ScopeView(key=pb.ScopeKey(tenant="acme", scope="plan"), receipts_json=[receipt(4)])
    )
    (line,) = mirror.lines(made)
    assert (line.kind, line.by, line.certified_tokens) == ("supersede", "revision", 48)
    assert line.trace_id == "ab" * 16
    (other,) = mirror.lines(replace(made, uid="another"))
    assert other.by == "runtime"


def test_a_successor_that_comes_later_fills_in_what_it_inherited() -> None:
    """Whether it is told with the whole receipt or by itself; nothing else of the line changes."""
    alone = receipt(4, stages_ms={}, trace_id=None, residual_ms=None, extra={LATE: True})
    early = receipt(4, stop_reason=None, inheritable_tokens=0, certified_tokens=0)
    for late in (receipt(4), alone):
        mirror, made = Mirror(), parse(body())
        mirror.take(record(4, receipt_json=early, idempotency_key="cr/uid-plan/supersede/4"))
        (before,) = mirror.lines(made)
        assert (before.certified_tokens, before.stopped_by) == (None, None)
        assert "certifiedTokens" not in receipts.to_status(before)
        mirror.take(record(4, "receipt", receipt_json=late))
        (after,) = mirror.lines(made)
        assert after == replace(
            before, inheritable_tokens=64, certified_tokens=48, stopped_by="first_difference"
        )


def test_lines_are_newest_first_and_bounded() -> None:
    """Eight, whatever the order in which they were told; round trip through the status."""
    mirror = Mirror()
    for epoch in (3, 1, 12, 5, 7, 9, 2, 4, 6, 8, 10, 11):
        mirror.take(record(epoch))
    lines = mirror.lines(parse(body()))
    assert [line.to_version.epoch for line in lines] == list(range(12, 4, -1))
    rows = [receipts.to_status(line) for line in lines]
    assert receipts.merged(receipts.from_status(rows)) == receipts.from_status(rows)
    assert receipts.from_status([{"kind": "x"}, {"kind": "y", "toVersion": "bad"}, *rows]) == tuple(
        receipts.from_status(rows)
    )


def test_a_cancel_is_not_taken_for_a_supersede() -> None:
    """A receipt alone does not say which; the record of the commit does, in either order."""
    receipt_line = receipts.with_receipt(Line("supersede", Version(1, 4)), receipt(4))
    cancel = Line("cancel", Version(1, 4))
    for order in ((receipt_line, cancel), (cancel, receipt_line)):
        (line,) = receipts.merged(order)
        assert line.kind == "cancel" and line.certified_tokens == 48


def test_the_difference_is_a_merge_patch() -> None:
    """Only what changed; null for what is gone, inside objects too."""
    old = {"a": 1, "b": [1], "gone": 1, "o": {"x": 1, "y": 2}}
    new = {"a": 1, "b": [2], "o": {"x": 3}}
    assert difference(old, new) == {"b": [2], "gone": None, "o": {"x": 3, "y": None}}
    assert difference(new, new) == {}


def test_the_store_knows_owners_children_and_old_bodies() -> None:
    """The older object owns a scope; a body that the watch delivers late is refused."""
    store = ScopeStore()
    old, young = body("plan"), body("plan", tenant="acme")
    young["metadata"] |= {
        "namespace": "other",
        "uid": "u2",
        "creationTimestamp": "2026-11-30T11:00:00Z",
    }
    child = body("child", parentRef={"name": "plan"})
    grandchild = body("grandchild", parentRef={"name": "child"})
    for made in (young, old, child, grandchild):
        assert store.put(made)
    assert store.owner(ScopeKey("acme", "plan")) == Ref("acme", "plan")
    assert set(store.below(Ref("acme", "plan"))) == {
        Ref("acme", "child"),
        Ref("acme", "grandchild"),
    }
    assert not store.put(old), "an unchanged body was news"
    late = body("plan", epoch=9)
    late["metadata"]["resourceVersion"] = "6"
    assert not store.put(late)
    late["metadata"]["resourceVersion"] = "8"
    assert store.put(late)
    store.remove(Ref("acme", "plan"))
    assert store.owner(ScopeKey("acme", "plan")) == Ref("other", "plan")


def test_errors_of_the_api_server_are_translated_once() -> None:
    """With the message of its Status object."""
    text = json.dumps({"kind": "Status", "message": 'configmaps "c" not found'})
    assert isinstance(from_api("get", status=404, body=text), ObjectMissing)
    assert 'configmaps "c" not found' in str(from_api("get", status=404, body=text))
    assert isinstance(from_api("get", status=403, body="no"), AccessDenied)
    assert isinstance(from_api("get", status=503, body=""), ApiUnavailable)
    assert isinstance(from_api("get", status=None, body="refused"), ApiUnavailable)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETIRE_REGISTRY_URL", ""),
        ("RETIRE_REGISTRY_URL", "http://x"),
        ("RETIRE_TERM_LEASE", "no-namespace"),
        ("RETIRE_NODE_NAMESPACE", ""),
        ("RETIRE_SIDECAR_PORT", "70000"),
        ("RETIRE_HTTP_LISTEN", "8080"),
        ("RETIRE_RESYNC_S", "often"),
        ("RETIRE_FINALIZER_TIMEOUT_S", "-1"),
        ("RETIRE_TLS_CERT", "/nowhere/tls.crt"),
        ("RETIRE_LOG_FORMAT", "xml"),
    ],
)
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    """The variable, never its secret value."""
    with pytest.raises(InvalidField) as refused:
        Settings.from_env({**ENV, name: value})
    assert refused.value.field == name


def test_a_password_in_a_bad_url_is_not_repeated() -> None:
    """The message would end up in a log."""
    with pytest.raises(InvalidField) as refused:
        Settings.from_env({**ENV, "RETIRE_REGISTRY_URL": "https://u:hunter2@x"})
    assert "hunter2" not in str(refused.value)


def test_settings_have_defaults() -> None:
    """Three variables are enough."""
    made = Settings.from_env({**ENV, "RETIRE_WATCH_NAMESPACES": " a, b,,a "})
    assert made.watch_namespaces == ("a", "b")
    assert (made.sidecar_port, made.resync_s, made.finalizer_timeout_s) == (7070, 30.0, 30.0)
    assert made.tls is None and made.tls_server_name == "sidecar.retire.internal"
