"""The flags of kubectl: they may stand anywhere on the line, as kubectl users write them.

A kubectl plugin gets everything after its name: ``kubectl retire status -n a`` must mean the same
as ``kubectl retire -n a status``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

WITH_VALUE: Final = {
    "-n": "--namespace",
    "--namespace": "--namespace",
    "--context": "--context",
    "--kubeconfig": "--kubeconfig",
    "-o": "--output",
    "--output": "--output",
}
ALONE: Final = {"-A": "--all-namespaces", "--all-namespaces": "--all-namespaces"}


class MissingValue(Exception):
    """A flag at the end of the line, without the value it needs."""


def hoisted(arguments: Sequence[str], others_with_value: Iterable[str]) -> list[str]:
    """The flags above in front, everything else behind them in its order.

    ``others_with_value``: options of commands that take the next word, which is then no flag of
    ours whatever it looks like. After ``--`` nothing is a flag. MissingValue names the flag.
    """
    takes_next = set(others_with_value)
    ours: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in ALONE:
            ours.append(ALONE[word])
        elif word in WITH_VALUE:
            ours += [WITH_VALUE[word], _next(words, word)]
        elif equals and name in WITH_VALUE:
            ours += [WITH_VALUE[name], value]
        elif word[:2] in WITH_VALUE and len(word) > 2 and word[1] != "-":  # -nname
            ours += [WITH_VALUE[word[:2]], word[2:]]
        elif word in takes_next:
            rest += [word, _next(words, word)]
        else:
            rest.append(word)
    return [*ours, *rest]


def _next(words: Iterator[str], flag: str) -> str:
    try:
        return next(words)
    except StopIteration:
        raise MissingValue(f"flag needs an argument: {flag}") from None
