"""What is written and when it is true; how conflicts and ends of watches are met."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kubectl_world import ready, receipt, scope

from retire_operator.kubectl import following, revisions
from retire_operator.kubectl.failures import Changed, PluginError, ScopeMissing, TooLate
from retire_operator.kubectl.flags import MissingValue, hoisted
from retire_operator.kubectl.revisions import Wish


@pytest.mark.parametrize(
    ("spec", "status", "epoch"),
    [(4, None, 5), (4, 4, 5), (4, 9, 10), (4, 2, 5), (0, None, 1)],
)
def test_the_next_epoch_is_above_all(spec: int, status: int | None, epoch: int):
    """Above what was asked for and above what agents have made meanwhile."""
    body = scope(spec={"epoch": spec}, status={} if status is None else {"epoch": status})
    assert revisions.next_epoch(body) == epoch


def test_a_revision_names_what_it_was_made_from():
    """The resourceVersion makes it a compare-and-set; without a context the old one stays."""
    patch = revisions.revision(scope(), context=None, traceparent="00-a-b-01")
    assert patch == {
        "metadata": {
            "resourceVersion": "41",
            "annotations": {"serving.retire.dev/traceparent": "00-a-b-01"},
        },
        "spec": {"epoch": 5},
    }


CONTEXTS = {
    "prompt": ("do it", {"inline": {"prompt": "do it"}}),
    "JSON prompt": ('{"prompt": "p"}', {"inline": {"prompt": "p"}}),
    "messages": (
        '{"messages": [{"role": "user", "content": "x"}], "model": "m"}',
        {"inline": {"messages": [{"role": "user", "content": "x"}]}, "model": "m"},
    ),
    "a JSON list is a prompt": ("[1, 2]", {"inline": {"prompt": "[1, 2]"}}),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_context_files(case: str):
    """JSON with messages or prompt, else the prompt itself."""
    text, context = CONTEXTS[case]
    assert revisions.inline_context(text) == context


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the context is empty"),
        (" \n", "the context is empty"),
        ("{}", "it has nothing"),
        ('{"prompt": "a", "messages": []}', "exactly one of messages, prompt"),
        ('{"prompt": "a", "temperature": 0}', "it has prompt, temperature"),
    ],
)
def test_contexts_that_are_none(text: str, why: str):
    """The message says what it must be."""
    with pytest.raises(PluginError, match=why):
        revisions.inline_context(text)


@pytest.mark.parametrize(
    ("reference", "found"),
    [("a", ("a", "context")), ("a/b", ("a", "b"))],
)
def test_config_maps(reference: str, found: tuple[str, str]):
    """With the default key of the CRD."""
    context = revisions.config_map_context(reference)
    assert (context["configMapRef"]["name"], context["configMapRef"]["key"]) == found


@pytest.mark.parametrize("reference", ["", "/", "a/", "/b"])
def test_malformed_config_maps(reference: str):
    """Said before anything is written."""
    with pytest.raises(PluginError, match="NAME or NAME/KEY"):
        revisions.config_map_context(reference)


def merged(base: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@pytest.mark.parametrize(
    ("old", "new"),
    list(
        itertools.product(
            [
                {"inline": {"prompt": "old"}},
                {"inline": {"messages": [{"role": "user", "content": "old"}]}},
                {"configMapRef": {"name": "old", "key": "context"}},
                {"secretRef": {"name": "old", "key": "context"}},
            ],
            [
                revisions.prompt_context("new"),
                revisions.inline_context('{"messages": [{"role": "user", "content": "new"}]}'),
                revisions.config_map_context("new"),
            ],
        )
    ),
)
def test_only_one_source_of_a_context_is_left(old: dict, new: dict):
    """Whatever was there before; the model stays."""
    body = scope(spec={"context": {"model": "m", **old}})
    patch = revisions.revision(body, context=new, traceparent="")
    assert merged(body, patch)["spec"]["context"] == {"model": "m", **new}


@pytest.mark.parametrize(
    ("wish", "spec", "patch"),
    [
        (Wish.CANCEL, {}, {"cancelled": True}),
        (Wish.CANCEL, {"cancelled": True}, None),
        (Wish.PAUSE, {}, {"paused": True}),
        (Wish.PAUSE, {"paused": True}, None),
        (Wish.RESUME, {"paused": True}, {"paused": False}),
        (Wish.RESUME, {}, None),
    ],
)
def test_wishes(wish: Wish, spec: dict, patch: dict | None):
    """Nothing is written when the object says so already."""
    found = revisions.wished(scope(spec=spec), wish)
    assert (found or {}).get("spec") == patch


@pytest.mark.parametrize(
    ("wish", "status", "true"),
    [
        (Wish.PAUSE, {"observedGeneration": 2, "phase": "Paused"}, True),
        (Wish.PAUSE, {"observedGeneration": 1, "phase": "Paused"}, False),
        (Wish.PAUSE, {"observedGeneration": 2, "phase": "Active"}, False),
        (Wish.RESUME, {"observedGeneration": 2, "phase": "Active"}, True),
        (Wish.RESUME, {"observedGeneration": 2, "phase": "Paused"}, False),
        (Wish.RESUME, {"observedGeneration": 2}, False),
        (Wish.CANCEL, {"observedGeneration": 2, "phase": "Cancelled"}, True),
        (Wish.CANCEL, {}, False),
    ],
)
def test_when_a_wish_has_come_true(wish: Wish, status: dict, true: bool):
    """Only once the operator has seen this generation."""
    assert revisions.come_true(scope(status=status), wish) is true


def test_the_receipt_of_an_epoch():
    """Of its kind, and of that epoch where one is asked for."""
    body = scope(status={"receipts": [receipt(6, kind="cancel"), receipt(5), receipt(4)]})
    found = [
        revisions.receipt_of(body, kind="supersede"),
        revisions.receipt_of(body, kind="supersede", epoch=4),
        revisions.receipt_of(body, kind="cancel"),
        revisions.receipt_of(body, kind="supersede", epoch=6),
    ]
    assert [row and row["toVersion"] for row in found] == ["1.5", "1.4", "1.6", None]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, "is the operator running"),
        ({"conditions": [ready("False", "NoReadyNode", "none")]}, "Ready=False NoReadyNode: none"),
        ({"conditions": [ready()]}, ""),
    ],
)
def test_what_stands_in_the_way(status: dict, why: str):
    """From the conditions."""
    found = revisions.obstacle(scope(status=status))
    assert (why in found) if why else found == ""


class Memory:
    """A cluster of one object, with watches that end when the script says."""

    def __init__(self, body: Any, *, conflicts: int = 0, watches: Any = ()) -> None:
        self.body, self.conflicts = copy.deepcopy(body), conflicts
        self.watches = [list(bodies) for bodies in watches]
        self.patched: list[Any] = []

    def get(self, name: str) -> Any:
        return copy.deepcopy(self.body)

    def patch(self, name: str, patch: Mapping[str, Any]) -> Any:
        if self.conflicts:
            self.conflicts -= 1
            self.body["spec"]["epoch"] += 1
            raise Changed("patch: the object has been modified")
        self.patched.append(patch)
        self.body = merged(self.body, dict(patch))
        return copy.deepcopy(self.body)

    def changes(self, name: str, after: Any, *, limit_s: float) -> Iterator[Any]:
        for body in self.watches.pop(0) if self.watches else ():
            self.body = body
            yield copy.deepcopy(body)


def test_a_conflict_is_met_with_what_is_there_by_then():
    """Two revisions at once are two epochs: none is lost, none is made twice."""
    memory = Memory(scope(), conflicts=3)
    body = following.write(
        memory, "plan", lambda b: revisions.revision(b, context=None, traceparent="")
    )
    assert body["spec"]["epoch"] == 8  # the others made 5, 6 and 7
    assert len(memory.patched) == 1


def test_conflicts_without_end_are_given_up():
    """With a message that says that nothing was written."""
    memory = Memory(scope(), conflicts=1000)
    with pytest.raises(PluginError, match="nothing was written, try again"):
        following.write(memory, "plan", lambda b: revisions.wished(b, Wish.PAUSE))
    assert memory.patched == []


def test_a_watch_that_ends_misses_nothing():
    """The object is read again, then watched again."""
    reached = scope(status={"version": "1.5", "epoch": 5})
    memory = Memory(scope(), watches=[[], [scope()], [reached]])
    body = following.wait(memory, scope(), lambda b: revisions.reached(b, 5), timeout_s=30.0)
    assert body["status"]["epoch"] == 5


def test_too_late_says_what_stands_in_the_way():
    """Where the scope is, and what its condition says."""
    stuck = scope(
        status={"version": "1.4", "epoch": 4, "conditions": [ready("False", "NoReadyNode", "none")]}
    )
    times = iter([0.0, 1.0, 61.0, 62.0, 63.0])
    with pytest.raises(TooLate, match=r"60 s it is still at 1.4; Ready=False NoReadyNode: none"):
        following.wait(
            Memory(stuck, watches=[[stuck]]),
            stuck,
            lambda b: revisions.reached(b, 5),
            timeout_s=60.0,
            clock=lambda: next(times),
        )


def test_a_deleted_object_ends_the_wait():
    """What the watch raises comes through."""

    class Deleted(Memory):
        def changes(self, name: str, after: Any, *, limit_s: float) -> Iterator[Any]:
            raise ScopeMissing("servingscope 'plan' was deleted")

    with pytest.raises(ScopeMissing, match="was deleted"):
        following.wait(Deleted(scope()), scope(), lambda _: False, timeout_s=30.0)


def test_a_receipt_that_does_not_come_is_not_waited_for_long():
    """The version was reached: that is what counts."""
    memory = Memory(scope(status={"version": "1.5", "epoch": 5}))
    body = following.with_receipt(memory, memory.get("plan"), lambda _: None, timeout_s=0.0)
    assert body["status"]["version"] == "1.5"


LINES = {
    "status -n a": "--namespace a status",
    "-n a status": "--namespace a status",
    "status -na": "--namespace a status",
    "status --namespace=a x": "--namespace a status x",
    "status -A": "--all-namespaces status",
    "supersede x -o json --context c": "--output json --context c supersede x",
    "supersede x -ojson": "--output json supersede x",
    "supersede x --prompt -n": "supersede x --prompt -n",
    "supersede x --prompt=-n -n a": "--namespace a supersede x --prompt=-n",
    "status -- -n": "status -- -n",
    "top -w": "top -w",
    "": "",
}


@pytest.mark.parametrize("line", LINES)
def test_flags_may_stand_anywhere(line: str):
    """But not in the place of another option's value, nor after --."""
    assert " ".join(hoisted(line.split(), ["--prompt"])) == LINES[line]


@pytest.mark.parametrize(
    ("line", "flag"), [("status -n", "-n"), ("supersede x --prompt", "--prompt")]
)
def test_a_flag_without_its_value(line: str, flag: str):
    """Never the next word of another meaning."""
    with pytest.raises(MissingValue, match=f"flag needs an argument: {flag}"):
        hoisted(line.split(), ["--prompt"])
