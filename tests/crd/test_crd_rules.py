"""Structural rules: each accepts what it should and refuses the rest by field and rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from crd_rules import SPEC, STATUS, Rule
from crd_schema import Scopes, nodes, place, rules_of

from e2e.api import ApiError

if TYPE_CHECKING:
    from e2e.cluster import ExistingCluster

WRONG_TYPE: dict[str, Any] = {
    "string": 7,
    "integer": "seven",
    "number": "seven",
    "boolean": "yes",
    "object": ["a"],
    "array": "a",
}
PATHS = {path: node for path, node in nodes() if path}


@pytest.fixture(scope="module")
def scopes(cluster: ExistingCluster, crd: str) -> Scopes:
    """Of a namespace of this module, with one scope whose status can be set."""
    made = Scopes(cluster.api, cluster.create_namespace("crd-rules"))
    made.create({"epoch": 0})
    return made


def write(scopes: Scopes, body: dict[str, Any]) -> Any:
    """Try a spec or a status; nothing is kept."""
    if "status" in body:
        return scopes.set_status(body["status"], dryRun="All")
    return scopes.try_create(body["spec"], "other")


def refused(scopes: Scopes, body: dict[str, Any]) -> str:
    """Why the server refused; fails when it did not."""
    with pytest.raises(ApiError) as caught:
        write(scopes, body)
    assert caught.value.code in (400, 422), caught.value
    return caught.value.message


@pytest.mark.parametrize("rule", SPEC + STATUS, ids=str)
def test_a_rule_accepts_what_it_should(scopes: Scopes, rule: Rule):
    """The bounds themselves, and every word of an enum."""
    for value in rule.accepted:
        write(scopes, place(rule.path, value))


@pytest.mark.parametrize("rule", SPEC + STATUS, ids=str)
def test_a_rule_refuses_by_field_and_rule(scopes: Scopes, rule: Rule):
    """One step beyond a bound; the message names the field and what would be right."""
    for value in rule.refused:
        message = refused(scopes, place(rule.path, value))
        assert rule.field in message, message
        assert rule.says in message, message


@pytest.mark.parametrize("path", PATHS)
def test_another_type_is_refused(scopes: Scopes, path: str):
    """Every field has one type; the refusal names both (of a time, its format)."""
    node = PATHS[path]
    message = refused(scopes, place(path, WRONG_TYPE[node["type"]]))
    assert path.rpartition(".")[2].removesuffix("[]") in message
    assert f"must be of type {node['type']}" in message or "must be of type date-time" in message


def test_every_structural_rule_is_in_the_table():
    """Both ways: the CRD has no rule without a test, and every test has its rule."""
    known = {"format:int64"}  # a width, tested by the largest values
    in_crd = {(path, word) for path, node in PATHS.items() for word in rules_of(node)}
    in_crd = {(path, word) for path, word in in_crd if word not in known}
    assert in_crd == {(rule.path, rule.keyword) for rule in SPEC + STATUS}


def test_a_missing_table_entry_would_be_seen():
    """Control: the listing finds keywords, required names and map keys."""
    node = {"type": "array", "maxItems": 2, "required": ["a"], "x-kubernetes-list-map-keys": ["a"]}
    assert set(rules_of(node)) == {"maxItems", "required:a", "unique"}


@pytest.mark.parametrize("path", [p for p, node in PATHS.items() if node.get("format") == "int64"])
def test_wide_numbers_are_kept(scopes: Scopes, path: str):
    """Counters above 32 bits are not cut, where their bounds allow them."""
    value = min(2**40 - 1, PATHS[path].get("maximum", 2**40))
    body = write(scopes, place(path, value))
    for part in path.replace("[]", ".0").split("."):
        body = body[int(part)] if part.isdigit() else body[part]
    assert body == value


def test_an_unknown_field_is_refused_by_name(scopes: Scopes):
    """kubectl validates strictly: a misspelt field is not silently dropped."""
    message = refused(scopes, {"spec": {"epoch": 1, "epcoh": 2}})
    assert 'unknown field "spec.epcoh"' in message


def test_an_unknown_field_is_pruned_where_nobody_asks(scopes: Scopes):
    """A client that ignores validation gets the field back absent, never stored."""
    body = scopes.create({"epcoh": 2}, "pruned", dryRun="All", fieldValidation="Ignore")
    assert "epcoh" not in body["spec"]
