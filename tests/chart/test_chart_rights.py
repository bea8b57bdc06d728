"""RBAC: exactly these rights, and nobody else's."""

from __future__ import annotations

import pytest
from chart_render import VARIANTS, template

SCOPES = "serving.retire.dev"


def rights(one) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """(group, resource, verb, names) of a role."""
    return {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted(group: str, resource: str, *verbs: str, names: tuple[str, ...] = ()):
    return {(group, resource, verb, names) for verb in verbs}


SCOPE_RIGHTS = (
    granted(SCOPES, "servingscopes", "get", "list", "watch", "patch")
    | granted(SCOPES, "servingscopes/status", "patch")
    | granted("", "events", "create", "get", "patch")
    | granted("", "configmaps", "get")
)
LEASE = ("retire-term",)


def test_the_operators_rights(variant):
    """Everywhere: its scopes, their contexts, events. Beside it: pods, and the one Lease."""
    rendered = variant("default")
    scopes = rendered.one("ClusterRole", "retire-serving-operator-scopes")
    assert rights(scopes) == SCOPE_RIGHTS | granted("", "secrets", "get")
    namespaces = rendered.one("ClusterRole", "retire-serving-operator-namespaces")
    assert rights(namespaces) == granted("", "namespaces", "get", "list")
    lease = ("coordination.k8s.io", "leases")
    assert rights(rendered.one("Role", "retire-operator")) == (
        granted("", "pods", "list", "watch")
        | granted(*lease, "create")
        | granted(*lease, "get", "update", names=LEASE)
    )


def test_an_operator_of_some_namespaces_has_rights_there_only(variant):
    """operator.watchNamespaces: role bindings in them, no list of namespaces, Secrets as told."""
    rendered = variant("cpu")
    watched = ("team-a", "team-b")
    bound = [
        one["metadata"]["namespace"]
        for one in rendered.of("RoleBinding")
        if one["roleRef"]["name"] == "retire-serving-operator-scopes"
    ]
    assert bound == [*watched]
    everywhere = [one["roleRef"]["name"] for one in rendered.of("ClusterRoleBinding")]
    assert everywhere == ["retire-serving-operator-namespaces"]
    namespaces = rendered.one("ClusterRole", "retire-serving-operator-namespaces")
    assert rights(namespaces) == granted("", "namespaces", "get", names=watched)
    scopes = rendered.one("ClusterRole", "retire-serving-operator-scopes")
    assert rights(scopes) == SCOPE_RIGHTS  # contextFromSecrets is off


@pytest.mark.parametrize(("name", "reviews"), [("default", 0), ("static", 0), ("production", 1)])
def test_a_sidecar_reads_the_lease(name: str, reviews: int, variant):
    """And asks about tokens only where auth.mode is tokenreview."""
    rendered = variant(name)
    lease = granted("coordination.k8s.io", "leases", "get", names=LEASE)
    assert rights(rendered.one("Role", "retire-node")) == lease
    found = [one for one in rendered.of("ClusterRole") if "tokens" in one["metadata"]["name"]]
    assert [rights(one) for one in found] == [
        granted("authentication.k8s.io", "tokenreviews", "create")
    ] * reviews


def test_people_read_status_and_write_spec(variant):
    """The aggregated roles: viewers change nothing, editors do not write status."""
    rendered = variant("default")
    view = rights(rendered.one("ClusterRole", "retire-serving-view"))
    edit = rights(rendered.one("ClusterRole", "retire-serving-edit"))
    assert {verb for _, _, verb, _ in view} == {"get", "list", "watch"}
    assert {resource for _, resource, _, _ in edit} == {"servingscopes"}
    assert not [one for one in variant("static").of("ClusterRole") if "view" in str(one)]


@pytest.mark.parametrize("name", VARIANTS)
def test_no_wildcards(name: str, variant):
    """Neither verbs nor resources nor groups, and nothing beyond the objects of this page."""
    rendered = variant(name)
    for one in (*rendered.of("Role"), *rendered.of("ClusterRole")):
        for group, resource, verb, _ in rights(one):
            assert "*" not in group + resource + verb, one["metadata"]["name"]
            assert verb not in ("escalate", "bind", "impersonate")
            assert group in ("", SCOPES, "coordination.k8s.io", "authentication.k8s.io")


@pytest.mark.parametrize("name", VARIANTS)
def test_roles_are_bound_to_our_accounts_only(name: str, variant):
    """Every subject is a ServiceAccount of this release; every role it names exists."""
    rendered = variant(name)
    accounts = {one["metadata"]["name"] for one in rendered.of("ServiceAccount")}
    for one in (*rendered.of("RoleBinding"), *rendered.of("ClusterRoleBinding")):
        assert {subject["kind"] for subject in one["subjects"]} == {"ServiceAccount"}
        assert {subject["name"] for subject in one["subjects"]} <= accounts
        assert rendered.one(one["roleRef"]["kind"], one["roleRef"]["name"])


def test_a_release_of_nodes_only_has_no_operators_rights(variant):
    """operator.enabled=false: the Lease is all that is granted."""
    rendered = variant("pool")
    assert rendered.of("ClusterRole") == []
    assert [one["metadata"]["name"] for one in rendered.of("Role")] == ["retire-node"]


def test_switches_take_rights_away():
    """contextFrom...=false: neither ConfigMaps nor Secrets are read."""
    options = [
        "model=m",
        "operator.contextFromSecrets=false",
        "operator.contextFromConfigMaps=false",
    ]
    rendered = template(*(word for one in options for word in ("--set", one)))
    found = rights(rendered.one("ClusterRole", "retire-serving-operator-scopes"))
    assert not {resource for _, resource, _, _ in found} & {"secrets", "configmaps"}
