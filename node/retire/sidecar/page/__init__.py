"""The live page: read-only, served by the sidecar beside its probes (RETIRE_HTTP_LISTEN)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from retire.sidecar.page.pins import Pins
from retire.sidecar.page.routes import LivePage
from retire.sidecar.page.viewers import Viewers

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from retire.sidecar.authentication import Authenticator
    from retire.sidecar.parts import Parts


def live_page(parts: Parts, authenticator: Authenticator | None) -> list[BaseRoute]:
    """Its routes. ``authenticator`` None: no tokens, so only this host may look."""
    pins = Pins(parts, wall_s=time.time)
    return LivePage(parts, Viewers(authenticator), pins, wall_s=time.time).routes()
