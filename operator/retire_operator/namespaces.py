"""Annotations of the namespaces, kept for a moment: they are asked for at every reconcile.

With a list of namespaces only those are read, one by one, so that a namespaced Role is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from retire_operator.errors import ObjectMissing

KEPT_S: Final = 2.0


class Objects(Protocol):
    """What is read of the API server (kube.Kube)."""

    async def annotations(self, namespace: str) -> Mapping[str, str]:
        """Of one; ObjectMissing."""
        ...

    async def all_annotations(self) -> Mapping[str, Mapping[str, str]]:
        """Of every one."""
        ...


class Namespaces:
    """``only``: the namespaces this operator watches; empty: all."""

    def __init__(
        self, objects: Objects, *, only: tuple[str, ...] = (), clock: Callable[[], float]
    ) -> None:
        self._objects = objects
        self._only = only
        self._clock = clock
        self._kept: tuple[float, Mapping[str, Mapping[str, str]]] | None = None
        self._lock = asyncio.Lock()

    async def of(self, namespace: str) -> Mapping[str, str]:
        """One namespace's; none when it is gone."""
        return (await self.all()).get(namespace, {})

    async def all(self) -> Mapping[str, Mapping[str, str]]:
        """By name."""
        async with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= KEPT_S:
                self._kept = (self._clock(), await self._read())
            return self._kept[1]

    async def _read(self) -> Mapping[str, Mapping[str, str]]:
        if not self._only:
            return await self._objects.all_annotations()
        found = await asyncio.gather(*(self._one(name) for name in self._only))
        return dict(zip(self._only, found, strict=True))

    async def _one(self, namespace: str) -> Mapping[str, str]:
        try:
            return await self._objects.annotations(namespace)
        except ObjectMissing:
            return {}
