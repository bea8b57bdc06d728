"""What the parts of the sidecar share: the node's name, its tables, its clock and its registry.

Values handed in once at start. Must never hold behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from retire.registry.interface import Registry
    from retire.sidecar.config import Settings
    from retire.sidecar.journal import Journal
    from retire.sidecar.links import Links
    from retire.sidecar.scopes import Scopes
    from retire.sidecar.stages import Stages
    from retire.sidecar.tasks import Tasks
    from retire.sidecar.tracks import Tracks
    from retire.telemetry.history import History


@dataclass(slots=True)
class Identity:
    """Who this node is to the registry. ``term`` and ``boot_id`` change in a rebuild or
    re-entry.
    """

    node: str
    boot_id: str  # the mailbox file's, so that a restart on the same file is the same boot
    term: int


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything a part may reach."""

    identity: Identity
    registry: Registry
    scopes: Scopes
    links: Links
    journal: Journal
    history: History
    tracks: Tracks
    tasks: Tasks
    settings: Settings
    stages: Stages
    clock: Callable[[], float]  # monotonic seconds
