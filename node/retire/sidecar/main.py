"""``python -m retire.sidecar.main``: one sidecar process, from environment to clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import TYPE_CHECKING, Final

from retire.mailbox import MailboxWriter
from retire.protocol.errors import RetireError
from retire.registry.client import AsyncRegistry
from retire.registry.settings import RegistrySettings, where
from retire.registry.term import TermFile, claim_term
from retire.sidecar.config import Settings
from retire.sidecar.node import Node
from retire.sidecar.parts import Given, Parts
from retire.sidecar.server import Server, own_folder
from retire.sidecar.views import not_ready_reason
from retire.telemetry import logs, names
from retire.telemetry.history import History
from retire.telemetry.logs import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(names.LOGGER_SIDECAR)
_READY_POLL_S: Final = 0.05
_GRACE_S: Final = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 2 when the configuration is refused."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = Settings.from_env()
        logs.setup(_log_format(arguments, settings))
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
    parts = Parts(_given(settings))
    server = Server(Node(parts), settings)
    await server.start()
    _log.info(
        "listening",
        extra=fields(node=settings.node, socket=settings.socket, tcp=server.port or "off"),
    )
    parts.start()
    watching = asyncio.create_task(_watch_ready(parts, server))
    await stopping.wait()
    _log.info("shutting down: gates close", extra=fields(node=settings.node))
    watching.cancel()
    parts.close_gates()
    await server.stop(_GRACE_S)
    await parts.stop()


def _given(settings: Settings) -> Given:
    own_folder(settings.socket.parent)
    authority = TermFile(settings.term_file)
    term, first = claim_term(authority)
    url = settings.registry_url
    timeout_s = max(0.25, settings.lease_s / 2)
    _log.info("registry", extra=fields(url=where(url).removeprefix("at "), term=term))
    return Given(
        settings=settings,
        registry=AsyncRegistry(
            url, RegistrySettings(timeout_s=timeout_s, retries=1, create_when_empty=first)
        ),
        authority=authority,
        term=term,
        mailbox=MailboxWriter.create(settings.mailbox, capacity=settings.slots),
        history=History.from_env(),
    )


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


def _log_format(arguments: Sequence[str], settings: Settings) -> str:
    for at, argument in enumerate(arguments):
        if argument == "--log-format" and at + 1 < len(arguments):
            return arguments[at + 1]
        if argument.startswith("--log-format="):
            return argument.partition("=")[2]
    return settings.log_format


def _runner():
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    sys.exit(main())
