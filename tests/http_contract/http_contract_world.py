"""Our API process over HTTP, without a model, attached to a real sidecar with a real registry.

The engine is the table of ``tests/engine_api``; everything that a call of ``/v1/scopes`` passes is
the product's: guard, admission, routes, link, gRPC, sidecar, registry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from engine_api_model import Engine
from engine_api_world import listening
from page_world import World
from starlette.applications import Starlette

from retire.engine.admission import Admission
from retire.engine.asgi import PublicationGuard
from retire.engine.core_calls import CoreCalls
from retire.engine.headers import tag_headers
from retire.engine.link import SidecarLink
from retire.engine.routes import ScopeRoutes
from retire.engine.settings import Settings
from retire.protocol.versions import ScopeKey
from retire.sidecar.config import Auth

SECRET = "globex-secret"  # in every name that the other tenant chose
TOKENS = {"acme": "acme-token", "globex": "globex-token"}


@dataclass
class Api:
    """Where it listens, and what stands behind it."""

    url: str
    world: World

    def get(self, path: str, tenant: str) -> dict[str, Any]:
        """As that tenant."""
        headers = {"authorization": f"Bearer {TOKENS[tenant]}"}
        answer = httpx.get(self.url + path, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def version(self, scope: str) -> str:
        """The current version of a scope of acme."""
        return self.get(f"/v1/scopes/{scope}", "acme")["version"]


@contextlib.contextmanager
def world_at(folder: Path) -> Iterator[World]:
    """A node that asks for tokens, with scopes of two tenants."""
    tokens = folder / "tokens"
    entries = [
        {"sha256": hashlib.sha256(token.encode()).hexdigest(), "tenant": tenant, "name": "t"}
        for tenant, token in TOKENS.items()
    ]
    tokens.write_text(json.dumps({"tokens": entries}))
    with World(folder, RETIRE_AUTH="static", RETIRE_TOKENS_FILE=str(tokens)) as world:
        world.join(ScopeKey("acme", "plan"), ScopeKey("acme", "other"))
        world.join(ScopeKey("globex", SECRET))
        world.supersede(ScopeKey("globex", SECRET))
        yield world


@contextlib.contextmanager
def api_at(world: World, routes: type[ScopeRoutes] = ScopeRoutes) -> Iterator[Api]:
    """Serving in the world's loop; ``routes``: those of the product, or with a planted fault."""
    serving = contextlib.AsyncExitStack()
    url = world.run(serving.enter_async_context(_serving(world, routes)))
    try:
        yield Api(url, world)
    finally:
        world.run(serving.aclose())


@contextlib.asynccontextmanager
async def _serving(world: World, routes: type[ScopeRoutes]) -> AsyncIterator[str]:
    settings = Settings(sidecar=f"unix:{world.sidecar.socket}", auth=Auth.STATIC)
    link = SidecarLink(settings, CoreCalls(Engine()))
    before = (await world.sidecar.until(lambda status: status.ready)).gates
    await link.start()
    await world.sidecar.until(lambda status: status.gates == before + 1)
    app = Starlette()
    app.state.openai_serving_chat = app.state.openai_serving_completion = None
    server: Any = SimpleNamespace(settings=settings, authenticated=False, link=lambda: link)
    routes(server).attach(app)
    inner = Admission(app, settings, lambda: link, lambda: False)
    guard = PublicationGuard(inner, lambda: link.publications, tag_headers(settings))
    async with listening(guard) as port:
        yield f"http://127.0.0.1:{port}"
    await link.stop()
    await world.sidecar.until(lambda status: status.gates == before)
