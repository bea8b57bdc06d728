"""Engines whose workers are processes of their own; one at a time, for they share few cores."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """vLLM and torch warn about themselves; here a warning is no finding."""
    config.addinivalue_line("filterwarnings", "ignore")
