"""What the scheduler asks of every worker, and what each answers: plain values, to be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy pages to the host as copy ``job``: the page of ``block_ids[i]`` becomes position i."""

    job: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy ``positions`` of copy ``copy`` into the pages of ``block_ids``, in the same order."""

    job: int
    copy: int
    positions: tuple[int, ...]
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class Orders:
    """One message to the workers. They begin the jobs in this order and answer at once."""

    begin: list[Offload | Restore] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)  # jobs that may end early
    drop: list[int] = field(default_factory=list)  # copies that nobody wants any more

    def __bool__(self) -> bool:
        return bool(self.begin or self.cancel or self.drop)


@dataclass(frozen=True, slots=True)
class Done:
    """One rank's part of a job has ended: its transfers touch no memory any more.

    ``tags``: one 64-bit digest a page, as read (offload) or as found in place (restore).
    """

    job: int
    tags: tuple[int, ...] = ()
    error: str | None = None
    ms: float = 0.0
