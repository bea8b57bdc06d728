"""``python -m retire.sidecar.main``: one sidecar process, from environment to clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from retire.mailbox import MailboxWriter
from retire.protocol.errors import RetireError
from retire.registry.client import AsyncRegistry
from retire.registry.settings import RegistrySettings, where
from retire.registry.term import TermFile, claim_term
from retire.sidecar.authentication import NoAuthentication
from retire.sidecar.config import Auth, Settings
from retire.sidecar.node import Node
from retire.sidecar.parts import Given, Parts
from retire.sidecar.server import Server, own_folder
from retire.sidecar.terms import OwnTerms, TermLease
from retire.sidecar.token_file import TokenFile
from retire.sidecar.token_reviews import TokenReviews
from retire.sidecar.views import not_ready_reason
from retire.telemetry import logs, names
from retire.telemetry.history import History
from retire.telemetry.logs import fields
from retire.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retire.sidecar.authentication import Authenticator
    from retire.sidecar.kube import KubeApi
    from retire.sidecar.pages import Pages
    from retire.sidecar.terms import Terms

_log = logging.getLogger(names.LOGGER_SIDECAR)
_READY_POLL_S: Final = 0.05
_GRACE_S: Final = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 2 when the configuration is refused."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = Settings.from_env()
        logs.setup(logs.format_of(arguments, settings.log_format))
        with contextlib.suppress(KeyboardInterrupt):
            _runner()(serve(settings))
    except RetireError as error:
        sys.stderr.write(f"retire sidecar: {error}\n")
        return 2
    return 0


async def serve(settings: Settings) -> None:
    """Build the parts, listen, keep health current, shut down cleanly."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    api = _kube(settings)
    parts = Parts(_given(settings, api))
    authenticator = _authenticator(settings, api)
    node = Node(parts, authenticator)
    server = Server(node, settings)
    await server.start()
    pages = await _pages(settings, parts, authenticator)
    _log.info(
        "listening",
        extra=fields(
            node=settings.node,
            socket=settings.socket,
            tcp=server.port or "off",
            http=pages.port if pages else "off",
        ),
    )
    parts.start()
    watching = asyncio.create_task(_watch_ready(parts, server))
    await stopping.wait()
    _log.info("shutting down: gates close", extra=fields(node=settings.node))
    watching.cancel()
    parts.close_gates()
    await server.stop(_GRACE_S)
    await parts.stop()
    for part in (pages, api):
        if part is not None:
            await part.close()


def _given(settings: Settings, api: KubeApi | None) -> Given:
    own_folder(settings.socket.parent)
    terms, term, first = _terms(settings, api)
    url = settings.registry_url
    timeout_s = max(0.25, settings.lease_s / 2)
    _log.info("registry", extra=fields(url=where(url).removeprefix("at "), term=term or "awaited"))
    return Given(
        settings=settings,
        registry=AsyncRegistry(
            url,
            RegistrySettings(
                timeout_s=timeout_s,
                retries=1,
                durability=settings.registry_durability,
                create_when_empty=first,
            ),
        ),
        terms=terms,
        term=term,
        mailbox=MailboxWriter.create(settings.mailbox, capacity=settings.slots),
        history=History.from_env(),
        tracer=Tracer.from_env(names.SERVICE_SIDECAR),
    )


def _terms(settings: Settings, api: KubeApi | None) -> tuple[Terms, int, bool]:
    """Where terms come from, the one to begin with (0: to be awaited), whether it is the first."""
    if settings.term_lease is not None:
        assert api is not None, "Settings.kube comes with the Lease"
        return TermLease(api, settings.term_lease), 0, False
    authority = TermFile(settings.term_file)
    return OwnTerms(authority), *claim_term(authority)


def _kube(settings: Settings) -> KubeApi | None:
    if settings.kube is None:
        return None
    from retire.sidecar.kube import KubeApi  # noqa: PLC0415 - HTTP only where it is asked for

    return KubeApi(settings.kube)


def _authenticator(settings: Settings, api: KubeApi | None) -> Authenticator:
    match settings.auth.kind:
        case Auth.STATIC:
            assert settings.auth.tokens_file is not None
            return TokenFile(settings.auth.tokens_file)
        case Auth.TOKENREVIEW:
            assert api is not None, "Settings.kube comes with TokenReview"
            return TokenReviews(api, settings.auth.audiences, clock=time.monotonic)
        case _:
            return NoAuthentication()


async def _pages(settings: Settings, parts: Parts, authenticator: Authenticator) -> Pages | None:
    if settings.http_listen is None:
        return None
    from retire.sidecar.measures import Measures  # noqa: PLC0415 - the same
    from retire.sidecar.page import live_page  # noqa: PLC0415 - the same
    from retire.sidecar.pages import Pages, probes  # noqa: PLC0415 - the same

    asks_tokens = settings.auth.kind is not Auth.NONE
    routes = probes(lambda: not_ready_reason(parts))
    routes += live_page(parts, authenticator if asks_tokens else None)
    routes.append(Measures(parts).route())
    pages = Pages(settings.http_listen, routes)
    await pages.start()
    return pages


async def _watch_ready(parts: Parts, server: Server) -> None:
    """Health follows readiness, and readiness has a reason; both only when they change."""
    shown: str | None = None
    while True:
        reason = not_ready_reason(parts)
        if reason != shown:
            if not reason:
                _log.info("ready")
            elif not shown:
                _log.warning("not ready", extra=fields(why=reason))
            await server.set_serving(not reason)
            shown = reason
        await asyncio.sleep(_READY_POLL_S)


def _runner():
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    sys.exit(main())
