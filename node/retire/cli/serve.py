"""``retire serve``: registry, sidecar and vLLM as one supervised stack."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from retire.cli.stack.children import StackOptions
    from retire.cli.stack.layout import Layout
    from retire.cli.stack.output import LineSink
    from retire.cli.stack.supervisor import ChildFailed

HEARTBEAT_S = 10.0
WHAT = {
    "registry": "embedded Valkey",
    "sidecar": "versions, lease, mailbox",
    "engine": "vLLM loads the model",
}


def serve(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="Model folder, or a name vLLM resolves.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.")] = 8000,
    state_dir: Annotated[
        Path | None, typer.Option(help="Owner-only folder; default $XDG_STATE_HOME/retire.")
    ] = None,
    tenant_quota: Annotated[
        int | None, typer.Option(help="KV blocks a tenant may keep pinned; default: no limit.")
    ] = None,
    log_format: Annotated[str, typer.Option(help="plain or json.")] = "plain",
    registry: Annotated[
        str | None, typer.Option(help="URL of a Valkey or Redis; default: an embedded one.")
    ] = None,
    auth: Annotated[
        str,
        typer.Option(envvar="RETIRE_AUTH", help="Who names the tenant: none, static, tokenreview."),
    ] = "none",
    tokens_file: Annotated[
        Path | None,
        typer.Option(envvar="RETIRE_TOKENS_FILE", help="Tokens by SHA-256, for --auth static."),
    ] = None,
    page_port: Annotated[
        int | None,
        typer.Option(help="Of the live page, on 127.0.0.1; default: the one above --port, or any."),
    ] = None,
) -> None:
    """Serve MODEL with versioned execution. Arguments after -- go to vLLM."""
    from retire.cli.stack import ports
    from retire.cli.stack.children import StackOptions
    from retire.cli.stack.layout import layout_of
    from retire.cli.stack.output import JsonSink, PlainSink
    from retire.protocol.errors import InvalidField

    if log_format not in ("plain", "json"):
        raise InvalidField("--log-format", log_format, "plain or json")
    port = ports.claim(host, port)
    options = StackOptions(
        model=model,
        host=host,
        port=port,
        page_port=ports.claim_page(page_port, port),
        log_format=log_format,
        tenant_quota=tenant_quota,
        registry_url=registry,
        auth=auth,
        tokens_file=tokens_file,
        engine_args=tuple(ctx.args),
    )
    log = JsonSink() if log_format == "json" else PlainSink()
    raise typer.Exit(asyncio.run(_serve(options, layout_of(state_dir, os.environ), log)))


async def _serve(options: StackOptions, layout: Layout, log: LineSink) -> int:
    from retire.cli.stack.output import SUPERVISOR
    from retire.cli.stack.stack import running
    from retire.cli.stack.supervisor import ChildFailed

    progress = Progress(log)
    heartbeat = asyncio.create_task(progress.beat())
    try:
        async with running(options, layout, log=log, progress=progress) as supervisor:
            heartbeat.cancel()
            if not supervisor.stopping:
                log(SUPERVISOR, f"live page: {options.page_url}  (or: retire top)")
                log(
                    SUPERVISOR,
                    f"ready in {progress.elapsed_s:.0f} s: {options.url}/v1  (Ctrl-C stops)",
                )
            await supervisor.wait()
            log(SUPERVISOR, "stopping")
    except ChildFailed as failure:
        _report(failure, log)
        return failure.code or 1
    finally:
        heartbeat.cancel()
    log(SUPERVISOR, "stopped")
    return 0


class Progress:
    """Says what is being started, and every ten seconds that it still is."""

    def __init__(self, log: LineSink) -> None:
        self._log = log
        self._start_s = time.monotonic()
        self._part = ""

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start_s

    def __call__(self, part: str) -> None:
        """Now this part is being started."""
        self._part = part
        self._log("retire", f"starting {part} ({WHAT.get(part, part)})")

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._log("retire", f"waiting for {self._part}, {self.elapsed_s:.0f} s so far")


def _report(failure: ChildFailed, log: LineSink) -> None:
    log("retire", f"{failure}; stopped everything. Its last lines:")
    for line in failure.tail:
        log("retire", f"  {failure.name}: {line}")
