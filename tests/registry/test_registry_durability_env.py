"""What an administrator may state of a server that may not be asked."""

from __future__ import annotations

import pytest

from retire.protocol.errors import InvalidField
from retire.registry.settings import DURABILITY_ENV, Durability, durability_from_env


@pytest.mark.parametrize(
    ("value", "durability"),
    [
        ("", Durability.DETECT),
        ("fsync-always", Durability.FSYNC_ALWAYS),
        ("waitaof", Durability.WAITAOF),
    ],
)
def test_the_environment_states_durability(value: str, durability: Durability) -> None:
    """Nothing said: the server is asked."""
    assert durability_from_env({DURABILITY_ENV: value}) is durability


@pytest.mark.parametrize("value", ["volatile", "always", "yes"])
def test_a_bad_statement_names_the_variable(value: str) -> None:
    """Volatile cannot be stated here: acknowledged commits would be lost."""
    with pytest.raises(InvalidField, match=DURABILITY_ENV):
        durability_from_env({DURABILITY_ENV: value})
