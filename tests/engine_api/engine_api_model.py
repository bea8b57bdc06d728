"""An API process without vLLM: our middleware over real HTTP, and a model that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
from engine_api_sidecar import ScriptedSidecar
from engine_api_world import listening, until
from starlette.applications import Starlette

from retire.engine.admission import Admission
from retire.engine.asgi import PublicationGuard
from retire.engine.core_calls import CoreCalls
from retire.engine.deliveries import Deliveries
from retire.engine.headers import tag_headers
from retire.engine.link import SidecarLink
from retire.engine.publication import CURRENT, Publication
from retire.engine.routes import ScopeRoutes
from retire.engine.settings import Settings
from retire.protocol.versions import ScopeKey

KEY = ScopeKey("default", "plan")
HELLO = {
    "boot_id": "b", "fingerprint": "f", "block_size": 16, "num_blocks": 100,
    "vllm_version": "0.26.0", "model": "m",
}  # fmt: skip
CERTIFICATE = {
    "certified_tokens": 48, "inheritable_tokens": 50, "first_difference": 50,
    "stop_reason": "first_difference", "frontier_tokens": 64, "pin": None,
}  # fmt: skip
FENCED = {
    "participants": [], "requests": [], "residual_ms": None, "branch": None, "predicted_ms": None,
    "pinned_blocks": 0, "quota_left": None,
    "host": {"bytes": 0, "bytes_left": 0, "refused": None},
}  # fmt: skip


class Engine:
    """AsyncLLM's client, as far as the link looks."""

    answers: ClassVar[dict[str, Any]] = {
        "retire_hello": HELLO, "retire_fence": FENCED, "retire_expect": CERTIFICATE,
        "retire_inspect": {"requests": [], "pinned_blocks": 0}, "retire_release": 0,
    }  # fmt: skip

    def __init__(self) -> None:
        self.engine_core = self.output_processor = self
        self.calls: list[str] = []

    def abort_requests(self, ids: list[str], internal: bool) -> list[str]:
        """Nothing is left for the engine to do."""
        return []

    async def call_utility_async(self, name: str, *args: Any) -> Any:
        """Answer from the table."""
        self.calls.append(name)
        return self.answers.get(name)


@dataclass
class Run:
    """One request in the model; the test ends it."""

    name: str
    publication: Publication
    go: asyncio.Event = field(default_factory=asyncio.Event)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    place: int = 0

    def __post_init__(self) -> None:
        self.request_id = self.name
        self.deliveries = Deliveries(self.name)

    @property
    def version(self) -> str:
        assert self.publication.tag is not None
        return str(self.publication.tag.version)

    def wake(self) -> None:
        """The gate closed: vLLM's consumer gets a final output."""
        self.go.set()


class Model:
    """Stands where vLLM's application stands. A body: ``{"name", "stream", "refuse", "early"}``."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.order: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one call; every request runs until the test says ``finish``."""
        raw, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        body = json.loads(raw)
        if body.get("refuse"):
            error = {"error": {"message": "the prompt is too long", "code": 400}}
            await _whole(send, 400, error)
            return
        if body.get("early"):  # as /v1/responses: an event before the engine is asked
            await _head(send)
            await _event(send, {"type": "response.created"})
        publication = CURRENT.get()
        assert publication is not None
        run = Run(body["name"], publication)
        self.runs[run.name] = run
        self.order.append(run.name)
        publication.attach(run)
        watching = asyncio.create_task(_left(receive, run))
        try:
            await self._answer(run, body, send)
        finally:
            watching.cancel()

    async def _answer(self, run: Run, body: dict[str, Any], send: Any) -> None:
        if not body.get("stream"):
            await run.go.wait()
            await _whole(send, 200, {"name": run.name})
            return
        if not body.get("early"):
            await _head(send)
        await _event(send, {"first": run.name})
        await run.go.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def running(self, name: str) -> Run:
        """The run of that name, once it is in the model."""
        await until(lambda: name in self.runs, 30)
        return self.runs[name]

    async def finish(self, name: str) -> None:
        """Let it end by itself."""
        (await self.running(name)).go.set()


@dataclass
class Process:
    """One API process, its sidecar and a client."""

    sidecar: ScriptedSidecar
    link: SidecarLink
    model: Model
    http: httpx.AsyncClient
    port: int

    def ask(self, name: str, *, path: str = "/v1/completions", **more: Any) -> asyncio.Task[Any]:
        """Send one input of the scope; headers beside its body's fields."""
        headers = {"x-retire-scope": KEY.scope} | more.pop("headers", {})
        sent = self.http.post(path, json={"name": name, **more}, headers=headers)
        return asyncio.create_task(sent)

    async def started(self, name: str, **more: Any) -> asyncio.Task[Any]:
        """The same, once it runs."""
        answer = self.ask(name, **more)
        await self.model.running(name)
        return answer

    def set_policy(self, word: str) -> None:
        """The registry's policy for the scope, as the sidecar has it from now on."""
        self.sidecar.scope(KEY).policy = word

    def waiting(self) -> int:
        """How many inputs wait."""
        slot = self.sidecar.writer.find(KEY)
        if slot is None:
            return 0
        with self.link.inputs._open().now(slot) as place:
            return len(place.waiting) if place is not None else 0


@contextlib.asynccontextmanager
async def process_at(
    folder: Path, settings: dict[str, Any] | None = None
) -> AsyncIterator[Process]:
    """Started, attached, with a mailbox of its own; RETIRE_MAILBOX must name ``folder/mailbox``."""
    sidecar = ScriptedSidecar(folder)
    await sidecar.start()
    chosen = Settings(sidecar=f"unix:{sidecar.socket}", **(settings or {}))
    link = SidecarLink(chosen, CoreCalls(Engine()))
    await link.start()
    await until(lambda: sidecar.attached == 1, 30)
    model = Model()
    inner = Admission(_with_routes(model, chosen, link), chosen, lambda: link, lambda: False)
    guard = PublicationGuard(inner, lambda: link.publications, tag_headers(chosen))
    limits = httpx.Limits(max_connections=None)
    async with listening(guard) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
            yield Process(sidecar, link, model, http, port)
            for run in model.runs.values():
                run.go.set()
    await link.stop()
    await sidecar.stop()


def _with_routes(model: Model, settings: Settings, link: SidecarLink) -> Any:
    """Our routes before the model, as they stand before vLLM's."""

    class Server:
        authenticated = False

        def __init__(self) -> None:
            self.settings = settings

        def link(self) -> SidecarLink:
            return link

    app = Starlette()
    ScopeRoutes(Server()).attach(app)
    app.router.default = model  # type: ignore[method-assign]
    return app


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def _left(receive: Any, run: Run) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    run.go.set()


async def _head(send: Any, status: int = 200, kind: bytes = b"text/event-stream") -> None:
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _event(send: Any, event: dict[str, Any]) -> None:
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _whole(send: Any, status: int, body: dict[str, Any]) -> None:
    await _head(send, status, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
