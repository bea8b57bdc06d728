"""``kubectl retire``: commands, flags, output and exit status.

1 for what failed, 2 for a bad command line. Owns nothing else; each command reads, writes through
following.py, and shows.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.live import Live

from retire_operator.kubectl import following, results, revisions, tables
from retire_operator.kubectl.cluster import Body
from retire_operator.kubectl.description import describe as described
from retire_operator.kubectl.failures import Denied, PluginError
from retire_operator.kubectl.flags import MissingValue, hoisted
from retire_operator.kubectl.revisions import Wish
from retire_operator.kubectl.session import Output, Session, console

_CONTEXT_BYTES_MAX: Final = 2**20


app = typer.Typer(
    name="kubectl-retire",
    help="Versioned execution of LLM serving: revise, cancel, pause and look at ServingScopes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Name = Annotated[str, typer.Argument(help="The ServingScope.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has come true.")]


@app.callback()
def flags(
    ctx: typer.Context,
    *,
    namespace: Annotated[str, typer.Option("-n", "--namespace")] = "",
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces")] = False,
    context: Annotated[str, typer.Option("--context", help="Of the kubeconfig.")] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig")] = "",
    output: Annotated[Output, typer.Option("-o", "--output")] = Output.TABLE,
) -> None:
    """Flags of kubectl; they may stand anywhere on the line."""
    ctx.obj = Session(namespace, all_namespaces, context, kubeconfig, output)
    ctx.call_on_close(ctx.obj.close)


@app.command()
def supersede(
    ctx: typer.Context,
    name: Name,
    *,
    context_file: Annotated[
        Path | None,
        typer.Option(help="The revised context: a prompt, or JSON with messages; - is stdin."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="The revised context itself.")] = None,
    from_configmap: Annotated[
        str | None, typer.Option(metavar="NAME[/KEY]", help="Where the revised context is.")
    ] = None,
    traceparent: Annotated[
        str | None, typer.Option(help="W3C trace context to join; by default a new trace.")
    ] = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
) -> None:
    """Retire the current plan: raise spec.epoch by one and wait for the receipt."""
    session: Session = ctx.obj
    revised = _context(context_file, prompt, from_configmap)
    trace = traceparent or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    body = following.write(
        session.scopes,
        name,
        lambda found: revisions.revision(found, context=revised, traceparent=trace),
    )
    epoch = int(body["spec"]["epoch"])
    if wait:
        body = following.wait(
            session.scopes, body, lambda b: revisions.reached(b, epoch), timeout_s=timeout
        )
        body = _with_receipt(session, body, "supersede", epoch)
    results.show_transition(session, body, "supersede", epoch, wait=wait)


@app.command()
def cancel(ctx: typer.Context, name: Name, *, wait: Wait = True, timeout: Timeout = 60.0) -> None:
    """End the scope for good, without a successor."""
    body = _wish(ctx.obj, name, Wish.CANCEL, wait=wait, timeout_s=timeout)
    if wait:
        body = _with_receipt(ctx.obj, body, "cancel", None)
    results.show_transition(ctx.obj, body, "cancel", None, wait=wait)


@app.command()
def pause(ctx: typer.Context, name: Name, *, wait: Wait = True, timeout: Timeout = 60.0) -> None:
    """Take no new work; authority stays."""
    results.show_phase(ctx.obj, _wish(ctx.obj, name, Wish.PAUSE, wait=wait, timeout_s=timeout))


@app.command()
def resume(ctx: typer.Context, name: Name, *, wait: Wait = True, timeout: Timeout = 60.0) -> None:
    """Undo a pause."""
    results.show_phase(ctx.obj, _wish(ctx.obj, name, Wish.RESUME, wait=wait, timeout_s=timeout))


@app.command()
def status(
    ctx: typer.Context, name: Annotated[str | None, typer.Argument(help="All, without one.")] = None
) -> None:
    """Version, phase and what was inherited and is pinned, one line a scope."""
    session: Session = ctx.obj
    if name is not None:
        body = session.scopes.get(name)
        session.show(body, lambda: tables.status_table([body], now_s=time.time()))
        return
    bodies = session.scopes.every(everywhere=session.everywhere)
    session.show(results.as_list(bodies), lambda: results.listing(session, bodies, time.time()))


@app.command()
def describe(ctx: typer.Context, name: Name) -> None:
    """Conditions, nodes, the last transitions on a time scale, events."""
    session: Session = ctx.obj
    body, why, events = session.scopes.get(name), "", None
    try:
        events = session.scopes.events(name)
    except Denied as error:  # the rest is worth showing
        why = str(error)
    session.show(
        {"object": body, "events": events},
        lambda: described(body, events, now_s=time.time(), events_why=why),
    )


@app.command()
def top(
    ctx: typer.Context,
    *,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Scopes and tenants by the KV blocks they pin."""
    session: Session = ctx.obj

    def read() -> list[Body]:
        return session.scopes.every(everywhere=session.everywhere)

    if not watch:
        bodies = read()
        session.show(results.as_usages(bodies), lambda: tables.top(bodies))
        return
    _watch(lambda: tables.top(read()), interval)


@app.command()
def trace(
    ctx: typer.Context,
    name: Name,
    *,
    jaeger_url: Annotated[
        str | None, typer.Option(envvar="RETIRE_JAEGER_URL", help="Show links to it.")
    ] = None,
) -> None:
    """The traces of the last transitions, newest first."""
    session: Session = ctx.obj
    body = session.scopes.get(name)
    rows = revisions.traces(body)
    if not rows:
        raise PluginError(
            f"servingscope {name!r} has no trace yet: no transition of it was recorded"
        )
    base = (jaeger_url or "").rstrip("/")
    for row in rows if base else ():
        row["url"] = f"{base}/trace/{row['traceId']}"
    session.show(rows, lambda: results.trace_table(rows))


def _watch(shown: Callable[[], RenderableType], interval_s: float) -> None:
    """On a terminal in place, into a pipe one after the other."""
    there = console()
    if not there.is_terminal:
        while True:
            there.print(shown())
            sys.stdout.flush()
            time.sleep(interval_s)
    with Live(shown(), console=there, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(shown(), refresh=True)


def _context(file: Path | None, prompt: str | None, config_map: str | None) -> Any:
    given = [source for source in (file, prompt, config_map) if source is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "give one of --context-file, --prompt, --from-configmap, not several"
        )
    if file is not None:
        return revisions.inline_context(_read(file))
    if prompt is not None:
        return revisions.prompt_context(prompt)
    return revisions.config_map_context(config_map) if config_map is not None else None


def _read(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        if len(data) > _CONTEXT_BYTES_MAX:
            raise PluginError(
                f"{file}: {len(data)} bytes; an object holds at most {_CONTEXT_BYTES_MAX}:"
                " put the context into a ConfigMap and use --from-configmap"
            )
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PluginError(f"{file}: must be UTF-8 text") from error
    except OSError as error:
        raise PluginError(f"{file}: {error.strerror}") from error


def _wish(session: Session, name: str, wish: Wish, *, wait: bool, timeout_s: float) -> Body:
    body = following.write(session.scopes, name, lambda found: revisions.wished(found, wish))
    if not wait:
        return body
    return following.wait(
        session.scopes, body, lambda b: revisions.come_true(b, wish), timeout_s=timeout_s
    )


def _with_receipt(session: Session, body: Body, kind: str, epoch: int | None) -> Body:
    return following.with_receipt(
        session.scopes, body, lambda b: revisions.receipt_of(b, kind=kind, epoch=epoch)
    )


def _value_options() -> set[str]:
    """Options of the commands that take the next word."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return {
        option
        for command in commands.values()
        for parameter in command.params
        if not getattr(parameter, "is_flag", True)
        for option in parameter.opts
        if option.startswith("-")
    }


def main(arguments: list[str] | None = None) -> None:
    """Parse the line, run the command, say what went wrong in one line."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app(hoisted(given, _value_options()), prog_name="kubectl retire")
    except (PluginError, MissingValue) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2 if isinstance(error, MissingValue) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # kubectl retire status | head
        sys.stderr.close()
        sys.exit(0)
