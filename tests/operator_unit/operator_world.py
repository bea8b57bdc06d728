"""Facts and objects for the operator's pure tests, and a simulated registry to converge on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retire.protocol.versions import ScopeKey, Version
from retire_operator import actions as do
from retire_operator.facts import Facts, NodeView, Record, RegistryView, Seen, Unknown
from retire_operator.receipts import Line
from retire_operator.resource import FINALIZER, Desired, Ref, parse

NOW_S = 1_790_000_000.0
SYNCED = RegistryView(1, True, "RegistrySynced", "complete under term 1")
NODE = NodeView("node-0", "boot-1", holds=True)


def body(name: str = "plan", **spec: Any) -> dict[str, Any]:
    """A ServingScope as the API server would hand it out."""
    return {
        "apiVersion": "serving.retire.dev/v1alpha1",
        "kind": "ServingScope",
        "metadata": {
            "name": name,
            "namespace": "acme",
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "finalizers": [FINALIZER],
        },
        "spec": spec,
    }


def desired(name: str = "plan", **spec: Any) -> Desired:
    return parse(body(name, **spec))


def facts(record: Record | Unknown | None = None, **fields: Any) -> Facts:
    """A calm world: registry synced, one ready node that holds the scope, current at 1.3."""
    spec = fields.pop("spec", {"epoch": 3})
    made = desired(**spec)
    return replace(
        Facts(
            desired=made,
            seen=Seen({"version": "1.3", "observedGeneration": 1}),
            registry=SYNCED,
            record=Record(Version(1, 3)) if record is None else record,
            nodes=(NODE,),
        ),
        **fields,
    )


def with_desired(given: Facts, **fields: Any) -> Facts:
    return replace(given, desired=replace(given.desired, **fields))


class World:
    """A registry and one object, for convergence: compare-and-set, idempotency keys, a journal."""

    def __init__(self, wanted: Desired, record: Record | None = None) -> None:
        self.wanted = wanted
        self.record = record
        self.term = 1
        self.status: dict[str, Any] = {}
        self.finalizer = False
        self.keys: dict[str, Version] = {}
        self.lines: list[Line] = []
        self.versions: list[Version] = [] if record is None else [record.version]
        self.refused = 0
        self.ticks = 0

    def view(self) -> Facts:
        """Facts as of now."""
        made = replace(self.wanted, has_finalizer=self.finalizer)
        record = Unknown.ABSENT if self.record is None else self.record
        return Facts(
            desired=made,
            seen=Seen(dict(self.status)),
            registry=replace(SYNCED, term=self.term),
            record=record,
            nodes=(NODE,),
            lines=tuple(reversed(self.lines)),
        )

    def apply(self, action: do.Action) -> bool:
        """What the registry would do with it; False when compare-and-set refuses."""
        self.ticks += 1
        match action:
            case do.AddFinalizer():
                self.finalizer = True
            case do.Register():
                if self.record is None:
                    version = Version(action.term, action.epoch)
                    self.record = Record(version, policy=action.policy)
                    self.versions.append(version)
            case do.Configure():
                assert self.record is not None
                self.record = replace(self.record, policy=action.policy)
            case do.Supersede() | do.Cancel() | do.Pause() | do.Resume():
                return self._commit(type(action).__name__.lower(), action)
            case do.Warm():
                self.status = {
                    **self.status,
                    "prewarm": {"version": str(action.version), "digest": action.digest},
                }
            case _:
                pass
        return True

    def runtime(self, kind: str) -> None:
        """A call of an agent."""
        if self.record is None or self.record.cancelled:
            return
        self.ticks += 1
        call = {"pause": do.Pause, "resume": do.Resume}.get(kind, do.Cancel)
        if kind == "supersede":
            action: Any = do.Supersede(
                self.record.version, f"rt/{self.ticks}", self.wanted.contract
            )
        else:
            action = call(self.record.version, f"rt/{self.ticks}")
        self._commit(kind, action)

    def _commit(self, kind: str, action: Any) -> bool:
        assert self.record is not None
        moves = kind in ("supersede", "cancel")
        # The executor makes the keys of pause and resume unique: the same change may come again.
        key = action.idempotency_key if moves else f"{action.idempotency_key}/{self.ticks}"
        if key in self.keys:
            return True
        if self.record.cancelled or action.expected != self.record.version:
            self.refused += 1
            return False
        if moves:
            moved = self.record.version.next_epoch()
            self.record = replace(self.record, version=moved, cancelled=kind == "cancel")
            self.versions.append(moved)
        else:
            self.record = replace(self.record, paused=kind == "pause")
        self.keys[key] = self.record.version
        by = "revision" if key.startswith("cr/") else "runtime"
        self.lines.append(Line(kind, self.record.version, by=by, at=_at(self.ticks)))
        return True


def _at(tick: int) -> str:
    hours, seconds = divmod(tick * 20, 3600)
    return f"2026-11-30T{hours % 24:02d}:{seconds // 60:02d}:{seconds % 60:02d}Z"


__all__ = ["NODE", "NOW_S", "SYNCED", "Ref", "ScopeKey", "World", "body", "desired", "facts"]
