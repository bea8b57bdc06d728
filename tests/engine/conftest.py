"""One real in-process engine per session; each test gets it empty and must leave it empty."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from retire.protocol.versions import ScopeKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.lab import Lab


_NUMBERS = count()


def pytest_configure(config: pytest.Config) -> None:
    """vLLM and torch warn about themselves; here a warning is no finding."""
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The shared engine's tests first: closing another one ends vLLM's state of this process."""
    items.sort(key=lambda item: "engine" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def engine() -> Iterator[Lab]:
    """A tiny Qwen3 with random weights, blocks of 32 tokens, prefill quantum of 64."""
    from bench.lab import Lab

    lab = Lab(max_num_seqs=4)
    yield lab
    lab.close()


@pytest.fixture
def lab(engine: Lab) -> Iterator[Lab]:
    """The engine with an empty cache; afterwards nothing may be left: blocks, pins, requests."""
    engine.clean()
    engine.key = ScopeKey("acme", f"plan-{next(_NUMBERS)}")
    yield engine
    engine.run()
    engine.scheduler.inheritance.expire(float("inf"))
    assert engine.settled() == []


@pytest.fixture
def ahead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under asynchronous scheduling: steps queue, and every long one is armed."""
    from retire.engine.fence_policy import StepTimes

    class SlowSteps(StepTimes):
        """Those of a large model: a second a token."""

        def predicted_ms(self, tokens: int) -> float | None:
            return 1000.0 * tokens

    monkeypatch.setattr(lab.scheduler.steps, "times", SlowSteps())
    monkeypatch.setattr(lab.scheduler.steps, "ahead", True)
