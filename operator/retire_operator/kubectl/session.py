"""What the flags of kubectl say, the cluster they lead to, and how results are written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rich.console import Console, RenderableType

from retire_operator.kubectl.cluster import Scopes, connect

_PIPE_COLUMNS: Final = 240  # a pipe has no width: nothing is folded or cut


class Output(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"


@dataclass(slots=True)
class Session:
    """What the flags say, and the cluster once somebody asks for it."""

    namespace: str = ""
    everywhere: bool = False
    context: str = ""
    kubeconfig: str = ""
    output: Output = Output.TABLE
    connected: Scopes | None = None

    @property
    def scopes(self) -> Scopes:
        """The cluster."""
        if self.connected is None:
            self.connected = connect(
                kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace
            )
        return self.connected

    def close(self) -> None:
        """Leave the cluster."""
        if self.connected is not None:
            self.connected.close()

    def show(self, machine: Any, human: Callable[[], RenderableType]) -> None:
        """A result, in the form that was asked for."""
        if self.output is Output.JSON:
            sys.stdout.write(json.dumps(machine, indent=2, ensure_ascii=False) + "\n")
        else:
            console().print(human())


def console() -> Console:
    """Where results go."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)
