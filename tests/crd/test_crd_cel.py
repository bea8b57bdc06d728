"""CEL rules: what may stand together, and what a change may do to what stands there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from crd_schema import Scopes, nodes

from e2e.api import ApiError

if TYPE_CHECKING:
    from e2e.cluster import ExistingCluster

PROMPT = {"prompt": "go"}
MESSAGES = {"messages": [{"role": "user", "content": "go"}]}
REF = {"name": "plan"}


@dataclass(frozen=True, slots=True)
class Change:
    """From one spec to another; ``before`` is None for a creation."""

    before: dict[str, Any] | None
    after: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CelRule:
    """A rule by its message."""

    path: str  # as the refusal names it
    says: str  # how the message begins
    accepted: tuple[Change, ...]
    refused: tuple[Change, ...]

    def __str__(self) -> str:
        return self.says


def creation(*specs: dict[str, Any]) -> tuple[Change, ...]:
    """Nothing before."""
    return tuple(Change(None, spec) for spec in specs)


RULES = [
    CelRule(
        "spec.context",
        "spec.context must have exactly one of inline, configMapRef, secretRef",
        creation(
            {"context": {"inline": PROMPT}},
            {"context": {"configMapRef": REF}},
            {"context": {"secretRef": REF}},
        ),
        creation(
            {"context": {}},
            {"context": {"model": "m"}},
            {"context": {"inline": PROMPT, "configMapRef": REF}},
            {"context": {"configMapRef": REF, "secretRef": REF}},
            {"context": {"inline": PROMPT, "secretRef": REF}},
            {"context": {"inline": PROMPT, "configMapRef": REF, "secretRef": REF}},
        ),
    ),
    CelRule(
        "spec.context.inline",
        "spec.context.inline must have exactly one of prompt, messages",
        creation({"context": {"inline": PROMPT}}, {"context": {"inline": MESSAGES}}),
        creation({"context": {"inline": {}}}, {"context": {"inline": PROMPT | MESSAGES}}),
    ),
    CelRule(
        "spec.parentRef.name",
        "spec.parentRef.name must name another ServingScope",
        (*creation({"parentRef": {"name": "parent"}}), Change({}, {"epoch": 1})),
        creation({"parentRef": {"name": "self"}}),
    ),
    CelRule(
        "spec.tenant",
        "spec.tenant is immutable",
        (
            Change({"tenant": "a"}, {"tenant": "a", "epoch": 1}),
            Change({}, {"epoch": 1}),
        ),
        (
            Change({"tenant": "a"}, {"tenant": "b"}),
            Change({"tenant": "a"}, {}),
            Change({}, {"tenant": "a"}),
        ),
    ),
    CelRule(
        "spec.parentRef",
        "spec.parentRef is immutable",
        (Change({"parentRef": {"name": "a"}}, {"parentRef": {"name": "a"}, "epoch": 1}),),
        (
            Change({"parentRef": {"name": "a"}}, {"parentRef": {"name": "b"}}),
            Change({"parentRef": {"name": "a"}}, {}),
            Change({}, {"parentRef": {"name": "a"}}),
        ),
    ),
    CelRule(
        "spec.epoch",
        "spec.epoch must never be lowered",
        (
            Change({"epoch": 3}, {"epoch": 3}),
            Change({"epoch": 3}, {"epoch": 4}),
            *creation({"epoch": 57}),  # the registry's word is adopted
        ),
        (
            Change({"epoch": 3}, {"epoch": 2}),
            Change({"epoch": 3}, {}),
            Change({"epoch": 3, "term": 1}, {"epoch": 0, "term": 2}),
        ),
    ),
    CelRule(
        "spec.epoch",
        "spec.epoch may rise by one",
        (
            Change({"epoch": 3}, {"epoch": 9, "term": 1}),
            Change({"epoch": 3, "term": 1}, {"epoch": 9, "term": 2}),
            Change({"epoch": 3}, {"epoch": 9}, {"epoch": 8}),
            Change({"epoch": 3}, {"epoch": 7}, {"epoch": 8}),
            Change({"epoch": 9}, {"epoch": 10}, {"epoch": 8}),
        ),
        (
            Change({"epoch": 3}, {"epoch": 5}),
            Change({}, {"epoch": 2}),
            Change({"epoch": 3, "term": 2}, {"epoch": 9, "term": 2}),
            Change({"epoch": 3}, {"epoch": 9}, {"epoch": 7}),
            Change({"epoch": 3}, {"epoch": 5}, {"version": "1.9"}),
        ),
    ),
    CelRule(
        "spec.term",
        "spec.term must never be lowered or removed",
        (
            Change({"term": 2}, {"term": 3}),
            Change({}, {"term": 2}),
            Change({"term": 2}, {"term": 2}),
        ),
        (Change({"term": 2}, {"term": 1}), Change({"term": 2}, {})),
    ),
    CelRule(
        "spec.cancelled",
        "spec.cancelled is final",
        (
            Change({}, {"cancelled": True}),
            Change({"cancelled": True}, {"cancelled": True, "quota": {"pinnedBlocks": 1}}),
        ),
        (Change({"cancelled": True}, {"cancelled": False}), Change({"cancelled": True}, {})),
    ),
    CelRule(
        "spec.epoch",
        "spec.epoch of a cancelled scope must stay",
        (
            Change({"epoch": 1}, {"epoch": 2, "cancelled": True}),  # the last revision ends it
            Change({"epoch": 1, "cancelled": True}, {"epoch": 1, "cancelled": True}),
        ),
        (Change({"epoch": 1, "cancelled": True}, {"epoch": 2, "cancelled": True}),),
    ),
    CelRule(
        "spec.paused",
        "spec.paused must not be set on a cancelled scope",
        (
            Change({}, {"paused": True}),
            Change({"paused": True}, {"paused": False}),
            Change({"paused": True}, {"paused": True, "cancelled": True}),
            Change({"paused": True, "cancelled": True}, {"cancelled": True}),
        ),
        (
            Change({"cancelled": True}, {"cancelled": True, "paused": True}),
            Change({}, {"cancelled": True, "paused": True}),
        ),
    ),
]
_names = itertools.count()


@pytest.fixture(scope="module")
def scopes(cluster: ExistingCluster, crd: str) -> Scopes:
    """Of a namespace of this module."""
    return Scopes(cluster.api, cluster.create_namespace("crd-cel"))


def attempt(scopes: Scopes, change: Change) -> Any:
    """Make the change for real, on an object of its own; "self" in a parent means that object."""
    name = f"s{next(_names)}"
    after = change.after
    if after.get("parentRef") == {"name": "self"}:
        after = {**after, "parentRef": {"name": name}}
    if change.before is None:
        return scopes.create(after, name)
    scopes.create(change.before, name)
    if change.status:
        scopes.set_status(change.status, name)
    return scopes.update(after, name)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_cel_rule_accepts_what_it_should(scopes: Scopes, rule: CelRule):
    """Each neighbour of what it refuses."""
    for change in rule.accepted:
        attempt(scopes, change)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_cel_rule_refuses_by_field_and_rule(scopes: Scopes, rule: CelRule):
    """422 Invalid; a cause that names the field and the rule's own words."""
    for change in rule.refused:
        with pytest.raises(ApiError) as caught:
            attempt(scopes, change)
        assert caught.value.code == 422, caught.value
        fields = [c["field"] for c in caught.value.causes if rule.says in c["message"]]
        assert fields == [rule.path], (change, caught.value.causes)


def test_every_cel_rule_is_in_the_table():
    """Both ways, by the message."""
    key = "x-kubernetes-validations"
    messages = [rule["message"] for _, node in nodes() for rule in node.get(key, [])]
    assert len(messages) == len(RULES)
    for rule in RULES:
        assert len([message for message in messages if message.startswith(rule.says)]) == 1, rule


def test_a_burst_needs_no_status(scopes: Scopes):
    """Eight revisions in a row, one by one, before anybody has written a status."""
    scopes.create({"epoch": 0}, "burst")
    for epoch in range(1, 9):
        assert scopes.update({"epoch": epoch}, "burst")["spec"]["epoch"] == epoch


def test_a_patch_is_judged_like_an_update(scopes: Scopes):
    """Merge patch and server-side apply meet the same transition rules."""
    scopes.create({"epoch": 5}, "patched")
    path = f"{scopes.path}/patched"
    for send in (
        lambda: scopes.api.merge(path, {"spec": {"epoch": 4}}),
        lambda: scopes.api.apply(path, scopes.body({"epoch": 4}, "patched")),
        lambda: scopes.api.patch(path, [{"op": "remove", "path": "/spec/epoch"}]),
    ):
        with pytest.raises(ApiError, match="spec.epoch must never be lowered"):
            send()


def test_a_writer_who_is_late_gets_a_conflict(scopes: Scopes):
    """resourceVersion makes an update a compare-and-set: two operators cannot both win."""
    first = scopes.create({"epoch": 0}, "contended")
    scopes.update({"epoch": 1}, "contended")
    with pytest.raises(ApiError) as caught:
        scopes.api.replace(f"{scopes.path}/contended", {**first, "spec": {"epoch": 1}})
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
