"""``retire demo``: model, stack, stories, verdict. Under five minutes on two cores."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from retire.protocol.errors import RetireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from retire.cli.demo.stories import Telling
    from retire.cli.stack.supervisor import Supervisor

NEEDS: Final = ("openai", "gguf", "matplotlib", "safetensors", "transformers")
ENGINE_ARGS: Final = (
    *("--served-model-name", "SmolLM2-135M-Instruct"),
    *("--max-model-len", "4096"),
    *("--block-size", "16"),
    *("--max-num-batched-tokens", "256"),  # the quantum: a step of a long prefill
    *("--generation-config", "vllm"),
    "--enforce-eager",  # compiling takes longer than the stories
    "--enable-prompt-tokens-details",  # vLLM's own count of cached tokens, to hold receipts against
)
ENGINE_ENV: Final = {
    "OMP_NUM_THREADS": "2",  # a 135M model gains nothing from more
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class DemoUnavailable(RetireError):
    """Something the demo needs is not installed."""

    code = "demo_unavailable"


def demo(
    out: Annotated[Path, typer.Option(help="Where report and picture go.")] = Path("out/demo"),
    cache: Annotated[
        Path | None, typer.Option(help="Model cache; default $XDG_CACHE_HOME/retire.")
    ] = None,
) -> None:
    """Tell one agent story with Retire and with abort + resend, side by side."""
    from rich.console import Console

    from retire.cli.demo import model

    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise DemoUnavailable(
            f"the demo needs {', '.join(missing)}: pip install 'retire[demo,cpu]'"
        )
    console = Console(highlight=False)
    started_s = time.monotonic()
    folder = model.ensure(cache or model.cache_dir(os.environ), console)
    out.mkdir(parents=True, exist_ok=True)
    tellings = asyncio.run(_served(folder, out, console))
    ok = _conclude(tellings, out, console)
    console.print(f"[dim]{time.monotonic() - started_s:.0f} s in all[/]")
    raise typer.Exit(0 if ok else 1)


async def _served(model: Path, out: Path, console: Console) -> list[Telling]:
    """Start the stack, tell the stories, stop the stack."""
    from retire.cli.stack import ports
    from retire.cli.stack.children import StackOptions
    from retire.cli.stack.layout import layout_of
    from retire.cli.stack.stack import running
    from retire.cli.stack.supervisor import ChildFailed

    options = StackOptions(
        model=str(model),
        host="127.0.0.1",
        port=ports.claim("127.0.0.1", 0),
        log_format="plain",
        tenant_quota=None,
        registry_url=None,
        engine_args=ENGINE_ARGS,
        engine_env=ENGINE_ENV,
    )
    state = Path(tempfile.mkdtemp(prefix="retire-demo-"))
    log_path = out / "stack.log"
    try:
        with (
            log_path.open("w", encoding="utf-8") as log,
            console.status("starting registry, sidecar and vLLM") as status,
        ):

            def write(source: str, line: str) -> None:
                log.write(f"[{source}] {line}\n")
                log.flush()

            def say(what: str) -> None:
                status.update(what)
                if not console.is_terminal:
                    console.print(f"[dim]{what}[/]")

            def progress(part: str) -> None:
                say(f"starting {part}; the log is {log_path}")

            layout = layout_of(state, os.environ)
            async with running(options, layout, log=write, progress=progress) as supervisor:
                return await _unless_stopped(options.url, supervisor, say)
    except ChildFailed as failure:
        tail = "\n".join(f"  {line}" for line in failure.tail)
        raise DemoUnavailable(
            f"{failure}; the log is {log_path} and ends with\n{tail}"
        ) from failure
    finally:
        shutil.rmtree(state, ignore_errors=True)


async def _unless_stopped(
    url: str, supervisor: Supervisor, say: Callable[[str], None]
) -> list[Telling]:
    playing = asyncio.create_task(_play(url, say))
    stopped = asyncio.create_task(supervisor.wait())
    try:
        await asyncio.wait((playing, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            stopped.result()  # raises ChildFailed
            raise KeyboardInterrupt
        return playing.result()
    finally:
        for task in (playing, stopped):
            task.cancel()
        await asyncio.gather(playing, stopped, return_exceptions=True)


async def _play(url: str, say: Callable[[str], None]) -> list[Telling]:
    """Every story under every arm, one after the other."""
    from retire.cli.demo.agent import Agent
    from retire.cli.demo.stories import STORIES, Arm

    agent = Agent(url)
    try:
        say("warming up")
        await agent.warm_up()
        tellings = []
        for story in STORIES:
            for arm in Arm:
                say(f"{story.name}: {arm.value}")
                tellings.append(await agent.tell(story, arm))
        return tellings
    finally:
        await agent.close()


def _conclude(tellings: Sequence[Telling], out: Path, console: Console) -> bool:
    """Show, write and judge."""
    from retire.cli.demo import picture, report, view

    view.show(tellings, console)
    body = report.report(tellings)
    report.write(out / "report.json", body)
    picture.draw(tellings, out / "timeline.png")
    console.print(f"\n{out / 'report.json'}, {out / 'timeline.png'}")
    for failure in body["failures"]:
        console.print(f"[bold red]failed:[/] {failure}")
    if body["ok"]:
        console.print(
            "[bold green]ok:[/] no late token, the prefix was inherited, every receipt is true"
        )
    return body["ok"]
