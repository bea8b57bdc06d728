"""The ``vllm.endpoint_plugins`` entry: guard, admission, routes and link of vLLM's HTTP server.

Seam: ``vllm.plugins.endpoint_plugins.interface.EndpointPlugin`` (official, 0.26.0); the
application's ``build_middleware_stack`` and lifespan are wrapped on the instance, because the guard
must be outside every middleware, even those that are added after us. Must never decide a version.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from retire.engine.admission import Admission
from retire.engine.asgi import PublicationGuard
from retire.engine.core_calls import CoreCalls
from retire.engine.headers import tag_headers
from retire.engine.link import SidecarLink
from retire.engine.replies import NO_SIDECAR
from retire.engine.routes import ScopeRoutes
from retire.engine.settings import Settings
from retire.engine.tracing import Tracers
from retire.protocol.errors import Unavailable

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from retire.engine.publication import Publications


def endpoint_plugin() -> RetireApi:
    """The factory named in the package's entry points."""
    return RetireApi()


class RetireApi:
    """One HTTP server of vLLM. Each API process has its own; they share nothing but the mailbox."""

    name = "retire_api"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.settings = Settings.from_env()
        self.authenticated = False
        self._link: SidecarLink | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Routes, admission (inside authentication, which comes later), guard (outside all)."""
        ScopeRoutes(self).attach(app)
        app.add_middleware(
            Admission,
            settings=self.settings,
            link=lambda: self._link,
            authenticated=lambda: self.authenticated,
        )
        build = app.build_middleware_stack
        names = tag_headers(self.settings)
        app.build_middleware_stack = lambda: PublicationGuard(  # type: ignore[method-assign]
            build(), self._publications, names
        )
        self._stop_with(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Attach to the sidecar. Raises (the server stops) when the engine is not versioned."""
        if engine_client is None or not os.environ.get("RETIRE_MAILBOX"):
            return  # a render server, or plain vLLM: every tagged call answers 503
        _require_seams()
        self.authenticated = bool(getattr(args, "api_key", None) or os.environ.get("VLLM_API_KEY"))
        tracers = Tracers.from_env()
        link = SidecarLink(self.settings, CoreCalls(engine_client, tracers.engine), tracers.api)
        try:
            await link.start()
        except Exception as error:
            raise RuntimeError(
                "the Retire plugin does not answer in the engine process; "
                "VLLM_PLUGINS must list retire and retire_api"
            ) from error
        link.warming.state = state
        self._link = link

    def link(self) -> SidecarLink:
        """The link to the sidecar; Unavailable when this server has none."""
        if self._link is None:
            raise Unavailable(NO_SIDECAR)
        return self._link

    def _publications(self) -> Publications | None:
        return self._link.publications if self._link is not None else None

    def _stop_with(self, app: FastAPI) -> None:
        lifespan = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def ours(instance: Any) -> AsyncIterator[Any]:
            async with lifespan(instance) as state:
                try:
                    yield state
                finally:
                    if self._link is not None:
                        await self._link.stop()

        app.router.lifespan_context = ours  # type: ignore[assignment]


def _require_seams() -> None:
    from retire.engine.seams import delivery, output, tags

    for seam in (tags, delivery, output):
        if not seam.installed():
            raise RuntimeError(
                f"{seam.__name__} is not installed in this API process: nothing would be gated; "
                "VLLM_PLUGINS must list retire and retire_api"
            )
