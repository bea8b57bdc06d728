"""The two servers of the no-revision benchmark: vLLM without the plugin, and the whole stack.

Both are started as processes, side by side on one device, so that loads can take turns between
them: an idle engine launches nothing. Never imports vLLM.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from bench.cost_load import Server
from bench.stack import ENGINE_ARGS, ENVIRONMENT, READY_S, Stack, StackFailed, StackSettings
from bench.tiny_models import tiny_model
from retire.cli.stack.device import engine_defaults, machine

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST: Final = "127.0.0.1"
_DEFAULTS: Final = {"RETIRE_HISTORY": "", "RETIRE_QUANTUM_TOKENS": "2048"}
CUDA_ARGS: Final = (
    *("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "4352"),
    *("--max-num-batched-tokens", "4352", "--max-num-seqs", "64"),
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(2800 * 2**20)),
)
CPU_ARGS: Final = (*ENGINE_ARGS[:-3], "--max-num-seqs", "64", "--enforce-eager")


@contextlib.contextmanager
def absent(model: str, args: tuple[str, ...]) -> Iterator[Server]:
    """``vllm serve`` in an environment in which no plugin is loaded. StackFailed."""
    with tempfile.TemporaryDirectory(prefix="retire-absent-") as folder:
        port, log = _free_port(), Path(folder) / "log"
        env = _plain()
        fit = engine_defaults(machine(), args, env)  # what `retire serve` adds on a CPU
        command = [sys.executable, "-m", "retire.engine.serve", "--model", model, "--host", HOST]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--port", str(port), *fit.args, *args],
                env=env | dict(fit.env), stdout=out, stderr=out,
            )  # fmt: skip
        try:
            _until_healthy(process, port, log)
            yield Server(HOST, port, model)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def _plain() -> dict[str, str]:
    """The stack's environment without anything of ours; an empty list of plugins loads none."""
    env = {**os.environ, **ENVIRONMENT, "VLLM_PLUGINS": ""}
    return {name: value for name, value in env.items() if not name.startswith("RETIRE_")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://{HOST}:{port}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    raise StackFailed(f"vLLM without the plugin did not start:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def present(model: str, args: tuple[str, ...]) -> Iterator[Server]:
    """``retire serve``: registry, sidecar, vLLM with the plugin. StackFailed."""
    with Stack(StackSettings(model=model, engine_args=args, env=_DEFAULTS)) as stack:
        url = httpx.URL(stack.url)
        yield Server(url.host, url.port or 80, stack.model)


@contextlib.contextmanager
def both(model: str, args: tuple[str, ...]) -> Iterator[tuple[Server, Server]]:
    """Absent and present, started at the same time. ``model``: a tiny one's name, or a path."""
    path = model if "/" in model else str(tiny_model(model))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        started = [
            threads.submit(lambda make=make: stack.enter_context(make(path, args)))
            for make in (absent, present)
        ]
        without, with_plugin = (one.result() for one in started)
        yield without, with_plugin
