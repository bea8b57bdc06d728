"""Bounds, free rows and seals: the parts of the tier that only compute."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from retire.engine.tier import settings
from retire.engine.tier.budget import HostBudget, HostRefusal
from retire.engine.tier.copies import At, Binding, HostCopy, Stored, is_sealed, seal
from retire.engine.tier.runs import FreeRuns
from retire.protocol.versions import ScopeKey, Version

SECRET = bytes(range(32))
KEY = ScopeKey("acme", "plan")
TOKENS = list(range(100, 164))


def test_a_budget_is_charged_before_and_refunded_after() -> None:
    """Bytes of both tenants add up; what is refused reserves nothing."""
    budget = HostBudget(100, tenant_capacity=60)
    assert budget.charge(1, "acme", 50) is None
    assert budget.charge(2, "acme", 20) is HostRefusal.HOST_QUOTA
    assert budget.charge(3, "globex", 55) is HostRefusal.HOST_BYTES
    assert (budget.used, budget.left("acme"), budget.left("globex")) == (50, 10, 50)
    budget.set_quota("globex", 10)
    assert budget.charge(4, "globex", 11) is HostRefusal.HOST_QUOTA
    budget.set_quota("globex", None)
    assert budget.charge(5, "globex", 50) is None
    assert budget.by_tenant() == {"acme": 50, "globex": 50}
    budget.refund(1)
    budget.refund(5)
    assert (budget.used, budget.by_tenant(), budget.copies()) == (0, {}, set())


def test_free_rows_come_back_whole_in_any_order() -> None:
    """Random takes and gives: no row twice, and one run in the end."""
    rng = random.Random(7)
    for _ in range(50):
        free, held = FreeRuns(64), set[int]()
        taken: list[tuple[int, int]] = []
        for _ in range(40):
            if taken and rng.random() < 0.5:
                first, count = taken.pop(rng.randrange(len(taken)))
                free.give(first, count)
                held -= set(range(first, first + count))
            elif (run := free.take(rng.randint(1, 20))) is not None:
                rows = set(range(run[0], sum(run)))
                assert not rows & held and max(rows) < 64
                held |= rows
                taken.append(run)
            assert free.free == 64 - len(held)
        for run in taken:
            free.give(*run)
        assert free.runs == [(0, 64)]


def test_a_row_that_comes_back_twice_is_noticed() -> None:
    """A double release is a programmer's error."""
    free = FreeRuns(8)
    assert free.take(4) == (0, 4)
    free.give(0, 4)
    with pytest.raises(AssertionError, match="came back twice"):
        free.give(2, 1)


def a_copy() -> HostCopy:
    """Two groups: four pages and a window of two."""
    stored = Stored(1, KEY, Version(1, 0), 6, 600, 0, At.REST, ((1, 2, 3, 4, 5, 6),) * 2)
    return HostCopy(stored, 64, ((0, 1, 2, 3), (None, None, 4, 5)), 3, 10.0)


BOUND = Binding(KEY, Version(1, 0), 3, "model", "std", TOKENS)
OTHERS = {
    "tenant": replace(BOUND, key=ScopeKey("globex", "plan")),
    "scope": replace(BOUND, key=ScopeKey("acme", "job")),
    "version": replace(BOUND, version=Version(1, 1)),
    "term": replace(BOUND, version=Version(2, 0)),
    "generation": replace(BOUND, generation=4),
    "fingerprint": replace(BOUND, fingerprint="another model"),
    "mode": replace(BOUND, numerical_mode="bi"),
    "a token": replace(BOUND, tokens=[*TOKENS[:40], 7, *TOKENS[41:]]),
    "fewer tokens": replace(BOUND, tokens=TOKENS[:63]),
}


def test_a_seal_holds_for_what_was_sealed_and_for_longer_records() -> None:
    """Tokens past the copy are none of its business."""
    copy = a_copy()
    assert not is_sealed(copy, BOUND, SECRET)
    copy.seal = seal(copy, BOUND, SECRET)
    assert is_sealed(copy, BOUND, SECRET)
    assert is_sealed(copy, replace(BOUND, tokens=[*TOKENS, 1, 2]), SECRET)
    assert not is_sealed(copy, BOUND, bytes(32))


@pytest.mark.parametrize("field", OTHERS)
def test_a_seal_holds_for_nothing_else(field: str) -> None:
    """Every field that it binds matters."""
    copy = a_copy()
    copy.seal = seal(copy, BOUND, SECRET)
    assert not is_sealed(copy, OTHERS[field], SECRET)


@pytest.mark.parametrize("part", ["tag", "place", "length", "rank", "truncated"])
def test_a_seal_binds_pages_and_places(part: str) -> None:
    """One page's digest, two pages swapped, another length, a rank less, a page less."""
    copy = a_copy()
    copy.seal = seal(copy, BOUND, SECRET)
    one, two = copy.stored.tags
    match part:
        case "tag":
            copy.stored.tags = (one, (*two[:2], 99, *two[3:]))
        case "place":
            copy.index = ((1, 0, 2, 3), copy.index[1])
        case "length":
            copy.tokens = 48
        case "rank":
            copy.stored.tags = (one,)
        case _:
            copy.stored.tags = (one, two[:5])
    assert not is_sealed(copy, BOUND, SECRET)


def test_settings_say_which_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults are bounded by the host's memory; 0 bytes switches the tier off."""
    for name in (settings.BYTES_ENV, settings.TENANT_BYTES_ENV, settings.TIMEOUT_ENV):
        monkeypatch.delenv(name, raising=False)
    default = settings.HostSettings.from_env()
    assert 0 < default.bytes <= 4 * 2**30
    assert (default.tenant_bytes, default.restore_timeout_s) == (None, 2.0)
    monkeypatch.setenv(settings.BYTES_ENV, "0")
    monkeypatch.setenv(settings.TENANT_BYTES_ENV, "4096")
    monkeypatch.setenv(settings.TIMEOUT_ENV, "250")
    assert settings.HostSettings.from_env() == settings.HostSettings(0, 4096, 0.25)
    monkeypatch.setenv(settings.TIMEOUT_ENV, "0")
    with pytest.raises(ValueError, match="RETIRE_RESTORE_TIMEOUT_MS must be .* at least 1"):
        settings.HostSettings.from_env()
