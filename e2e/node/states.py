"""The states of a container and the status of a pod, as the API writes them. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Object = dict[str, Any]


class Kind(Enum):
    """What a container is to its pod."""

    INIT = "init"  # runs to its end before the next
    SIDECAR = "sidecar"  # an init container that is always restarted: a native sidecar
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running; why."""

    reason: str = "PodInitializing"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Since when."""

    started_at: str


@dataclass(frozen=True, slots=True)
class Terminated:
    """How it ended."""

    exit_code: int
    started_at: str
    finished_at: str
    message: str = ""

    @property
    def reason(self) -> str:
        """Kubernetes' word for it."""
        return "Error" if self.exit_code else "Completed"


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a pod's status tells of one container."""

    name: str
    image: str
    kind: Kind
    state: State
    last: Terminated | None
    restarts: int
    started: bool
    ready: bool


def stamp(now: dt.datetime) -> str:
    """A time as the API writes it, in whole seconds."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def state_json(state: State | None) -> Object:
    """``{"running": {...}}`` and so on."""
    match state:
        case None:
            return {}
        case Waiting(reason, message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(started_at):
            return {"running": {"startedAt": started_at}}
        case Terminated(exit_code, started_at, finished_at, message):
            words = {"exitCode": exit_code, "reason": state.reason}
            times = {"startedAt": started_at, "finishedAt": finished_at}
            return {"terminated": words | times | ({"message": message} if message else {})}
        case _:
            raise AssertionError(state)


def container_json(view: ContainerView) -> Object:
    """One entry of containerStatuses."""
    return {
        "name": view.name,
        "image": view.image,
        "imageID": f"local://{view.image}",
        "state": state_json(view.state),
        "lastState": state_json(view.last),
        "restartCount": view.restarts,
        "started": view.started,
        "ready": view.ready,
    }


def initialized(views: Sequence[ContainerView]) -> bool:
    """Every init container has done its work, every native sidecar has started."""
    for view in views:
        if view.kind is Kind.SIDECAR and not view.started:
            return False
        done = isinstance(view.state, Terminated) and view.state.exit_code == 0
        if view.kind is Kind.INIT and not done:
            return False
    return True


def phase(views: Sequence[ContainerView], policy: str) -> str:
    """Pending, Running, Succeeded or Failed."""
    main = [view for view in views if view.kind is Kind.MAIN]
    failed_init = any(
        view.kind is Kind.INIT and isinstance(view.state, Terminated) and view.state.exit_code
        for view in views
    )
    if failed_init and policy == "Never":
        return "Failed"
    if not initialized(views) and all(_never_ran(view) for view in main):
        return "Pending"
    ends = [view.state.exit_code for view in main if isinstance(view.state, Terminated)]
    if len(ends) == len(main) and not any(ends) and policy != "Always":
        return "Succeeded"
    if len(ends) == len(main) and policy == "Never":
        return "Failed"
    if all(_never_ran(view) for view in main):
        return "Pending"
    return "Running"


def _never_ran(view: ContainerView) -> bool:
    return isinstance(view.state, Waiting) and view.last is None


def pod_status(
    views: Sequence[ContainerView], previous: Object, *, policy: str, now: str
) -> Object:
    """Phase, conditions and container statuses; a transition time stays where nothing changed."""
    word = phase(views, policy)
    unready = [view.name for view in views if view.kind is not Kind.INIT and not view.ready]
    reason = "ContainersNotReady" if unready else ""
    if word in ("Succeeded", "Failed"):
        reason = "PodCompleted"
    obstacles = {
        "Initialized": "" if initialized(views) else "ContainersNotInitialized",
        "ContainersReady": reason,
        "Ready": reason,
    }
    before = {one["type"]: one for one in previous.get("conditions", [])}
    kept = [one for name, one in before.items() if name not in obstacles]
    message = f"containers with unready status: [{' '.join(unready)}]"
    fresh = [_condition(name, why, message) for name, why in obstacles.items()]
    return {
        "phase": word,
        "conditions": kept + [_dated(one, before.get(one["type"]), now) for one in fresh],
        "initContainerStatuses": [container_json(v) for v in views if v.kind is not Kind.MAIN],
        "containerStatuses": [container_json(v) for v in views if v.kind is Kind.MAIN],
    }


def _condition(name: str, obstacle: str, message: str) -> Object:
    """True without an obstacle."""
    if not obstacle:
        return {"type": name, "status": "True"}
    return {"type": name, "status": "False", "reason": obstacle, "message": message}


def _dated(condition: Object, before: Object | None, now: str) -> Object:
    if before is not None and before["status"] == condition["status"]:
        now = before["lastTransitionTime"]
    return condition | {"lastTransitionTime": now}
