"""kopf's part: the watch of ServingScopes, its settings, its probes. Thin: events are handed on.

Only raw events are handled. kopf keeps no progress and no last-seen state on the objects, so what
it would fold together (a spec change into a create handler that still retries) cannot happen, and
two operators do not disturb each other. Must never touch the registry or a node.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import kopf

from retire_operator.resource import API_VERSION, GROUP, PLURAL

PREFIX: Final = "operator.serving.retire.dev"
_SERVER_TIMEOUT_S: Final = 300  # a watch is renewed this often; the API server wants an integer
_CLIENT_TIMEOUT_S: Final = 310  # and given up a little later: a dead connection says nothing


def registry(
    on_event: Callable[[str | None, Mapping[str, Any]], None],
    *,
    health: Callable[[], Mapping[str, Any]],
) -> kopf.OperatorRegistry:
    """``on_event(type, body)`` hears every event; type None: the object was listed."""
    made = kopf.OperatorRegistry()

    @kopf.on.startup(registry=made)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings_of(settings)

    @kopf.on.login(registry=made)
    def login(**kwargs: Any) -> Any:
        return kopf.login_via_client(**kwargs)

    @kopf.on.event(GROUP, API_VERSION, PLURAL, registry=made)
    def changed(event: Mapping[str, Any], **_: Any) -> None:
        on_event(event["type"], event["object"])

    @kopf.on.probe(id="operator", registry=made)
    def probe(**_: Any) -> Mapping[str, Any]:
        return health()

    return made


def settings_of(settings: kopf.OperatorSettings) -> None:
    """kopf's settings."""
    settings.peering.standalone = True  # safety is in compare-and-set, never in who leads
    settings.posting.enabled = False  # Events are our own
    settings.scanning.disabled = True  # neither CRDs nor namespaces are watched: least RBAC
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _CLIENT_TIMEOUT_S
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = Forever()  # an API server that is away must not end us
    settings.persistence.finalizer = f"{PREFIX}/unused"  # ours is set and removed by the reconcile
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=PREFIX, key="unused"
    )
    settings.process.ultimate_exiting_timeout = 30.0


class Forever:
    """How long to wait before each attempt; there is no last one."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(3.0))


def quiet_logs(level: int = logging.WARNING) -> None:
    """kopf logs every event it is given; what matters is logged by us."""
    for name in ("kopf", "aiohttp", "kubernetes"):
        logging.getLogger(name).setLevel(level)
