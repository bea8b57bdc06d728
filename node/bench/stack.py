"""The whole stack as processes, as a user starts it: ``retire serve`` with a tiny model.

For tests and benchmarks that need real processes: Valkey, sidecar, vLLM's API server, EngineCore.
Owns their start, their faults and their end. Must never import vLLM or reach into a process: all
that is observed comes over HTTP, from the log and from /proc.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from bench.stack_processes import COMPONENTS, component_pids
from bench.tiny_models import tiny_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLI: Final = (sys.executable, "-m", "retire.cli")
# The only worker is in the engine's process: as two processes they poll each other while anything
# runs, each on a whole core, and a small machine has none left for sidecar and gates.
ONE_PROCESS: Final = ("--distributed-executor-backend", "uni")
ENGINE_ARGS: Final = (
    *ONE_PROCESS,
    *("--max-model-len", "4096", "--block-size", "32", "--max-num-batched-tokens", "512"),
    *("--max-num-seqs", "4", "--enforce-eager"),
)
ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # allows "uni" on a CPU; the engine stays a process
    "RETIRE_QUANTUM_TOKENS": "64",  # short prefill steps: every state can be hit
}
READY_S: Final = 420.0
STOP_S: Final = 30.0
LOG_TAIL: Final = 40
_READY = re.compile(r"ready in \d+ s: (http://\S+)/v1")
_USAGE = re.compile(r"^vllm:kv_cache_usage_perc\{[^}]*\} (\S+)$", re.MULTILINE)
_BLOCKS = re.compile(r'^vllm:cache_config_info\{[^}]*?num_gpu_blocks="(\d+)"', re.MULTILINE)
_REQUESTS = re.compile(r"^vllm:num_requests_(running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)


class StackFailed(Exception):
    """The stack did not start, or what it showed makes no sense; the log's end is in the text."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """How a stack is started."""

    model: str = "qwen3-tiny"
    engine_args: Sequence[str] = ENGINE_ARGS
    serve_args: Sequence[str] = ()  # of ``retire serve`` itself: ("--tenant-quota", "8")
    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = CLI  # what stands for ``retire``; tests put a planted one here
    ready_s: float = READY_S


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the stack holds now."""

    scopes: Mapping[str, Mapping[str, Any]]  # name -> GET /v1/scopes of the tenant
    blocks: int  # KV blocks of the engine
    used_blocks: int  # by requests and pins, as of the engine's last step
    running: int  # requests
    waiting: int

    @property
    def pinned_blocks(self) -> int:
        """Of all scopes of the tenant."""
        return sum(view["pinned_blocks"] for view in self.scopes.values())

    @property
    def free_blocks(self) -> int:
        """As of the engine's last step."""
        return self.blocks - self.used_blocks


class Stack:
    """A running stack; ``start()`` and ``stop()``, or ``with``."""

    def __init__(self, settings: StackSettings | None = None) -> None:
        self.settings = settings or StackSettings()
        self._folder = tempfile.TemporaryDirectory(prefix="retire-stack-")
        self.dir = Path(self._folder.name)
        self.history = self.dir / "history.ndjson"
        self.log_path = self.dir / "stack.log"
        named = self.settings.model  # of a tiny model, or a path
        self.model = named if "/" in named else str(tiny_model(named))
        self.url = ""
        self.http = httpx.Client(timeout=httpx.Timeout(60.0, connect=5.0))
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: list[str] = []
        self._pump: threading.Thread | None = None
        self._changed = threading.Condition()

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when the stack is ready. StackFailed with the end of the log otherwise."""
        self._process = subprocess.Popen(
            self._argv(),
            env={**os.environ, **ENVIRONMENT, "RETIRE_HISTORY": str(self.history)}
            | dict(self.settings.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._pump = threading.Thread(target=self._read, name="stack log", daemon=True)
        self._pump.start()
        try:
            found = self.wait_log(_READY, self.settings.ready_s)
        except BaseException:
            self.stop()
            raise
        self.url = found[1]
        self.http.base_url = self.url
        return self

    def stop(self) -> None:
        """TERM to the supervisor, which ends everything; KILL when it does not."""
        process = self._process
        self._process = None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()  # every guard asked for its parent's death: nothing is left behind
                process.wait()
        if self._pump is not None:
            self._pump.join(5.0)
        if process is not None and process.stdout is not None:
            process.stdout.close()
        self.http.close()
        self._folder.cleanup()

    @property
    def alive(self) -> bool:
        """The supervisor runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the supervisor, ``retire serve`` itself."""
        assert self._process is not None, "not started"
        return self._process.pid

    def wait_exit(self, timeout_s: float = 60.0) -> int:
        """The exit status of a stack that ends by itself. StackFailed when it does not."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StackFailed(f"the stack still runs after {timeout_s:g} s") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _argv(self) -> list[str]:
        serve = ["serve", "--model", self.model, "--port", "0"]
        state = ["--state-dir", str(self.dir / "state")]
        own = [*self.settings.serve_args, "--", *self.settings.engine_args]
        return [*self.settings.command, *serve, *state, *own]

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with self.log_path.open("wb") as copy:
            for raw in self._process.stdout:
                copy.write(raw)
                copy.flush()
                with self._changed:
                    self._lines.append(raw.decode("utf-8", "replace").rstrip("\r\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    # --- the log --------------------------------------------------------------------------------

    def log(self, since: int = 0) -> list[str]:
        """Every line so far, ``[engine] ...``, from number ``since`` on."""
        with self._changed:
            return self._lines[since:]

    def wait_log(self, pattern: re.Pattern[str], timeout_s: float, since: int = 0) -> re.Match[str]:
        """The first match at or after line ``since``. StackFailed when none comes in time."""
        deadline_s, seen = time.monotonic() + timeout_s, since
        while True:
            with self._changed:
                new, over = self._lines[seen:], not self.alive
                seen += len(new)
                match = next((m for line in new if (m := pattern.search(line))), None)
                if match is not None:
                    return match
                if not new and (over or time.monotonic() >= deadline_s):
                    raise StackFailed(self._why(pattern, over, timeout_s))
                self._changed.wait(0.2)

    def _why(self, pattern: re.Pattern[str], over: bool, timeout_s: float) -> str:
        reason = "the stack ended" if over else f"{timeout_s:g} s passed"
        tail = "\n".join(self._lines[-LOG_TAIL:]) or "(no output)"
        return f"{reason} without a line that matches {pattern.pattern!r}; the log ends:\n{tail}"

    # --- processes ------------------------------------------------------------------------------

    @property
    def pids(self) -> dict[str, int]:
        """Component (registry, sidecar, api, enginecore) -> pid, of those that run."""
        if self._process is None:
            return {}
        return component_pids(self._process.pid)

    def kill(self, component: str, number: int = signal.SIGKILL) -> int:
        """Signal one component's own process (not its guard); its pid."""
        pids = self.pids
        if component not in pids:
            raise StackFailed(f"no {component} runs; of {COMPONENTS} these do: {pids}")
        os.kill(pids[component], number)
        return pids[component]

    def wait_restarted(self, component: str, old_pid: int, timeout_s: float = 60.0) -> int:
        """The pid of the process that replaced ``old_pid``. StackFailed when none comes."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            pid = self.pids.get(component)
            if pid is not None and pid != old_pid:
                return pid
            time.sleep(0.1)
        raise StackFailed(f"{component} was not started again within {timeout_s:g} s")

    # --- observation ----------------------------------------------------------------------------

    def headers(self, scope: str, tenant: str = "default") -> dict[str, str]:
        """The tag of an OpenAI call."""
        return {"x-retire-scope": scope, "x-retire-tenant": tenant}

    def scope(self, scope: str, tenant: str = "default") -> dict[str, Any]:
        """GET /v1/scopes/{scope}; httpx.HTTPStatusError when there is none."""
        answer = self.http.get(f"/v1/scopes/{scope}", headers={"x-retire-tenant": tenant})
        return answer.raise_for_status().json()

    def inspect(self, tenant: str = "default", *, settle: bool = False) -> Inspection:
        """Scopes of the tenant and the engine's gauges.

        The gauges are those of the engine's last step; ``settle`` runs one untagged token first, so
        that they are of now.
        """
        if settle:
            self.complete("now", max_tokens=1)
        listed = self.http.get("/v1/scopes", headers={"x-retire-tenant": tenant})
        text = self.http.get("/metrics").raise_for_status().text
        usage, blocks = _USAGE.search(text), _BLOCKS.search(text)
        if usage is None or blocks is None:
            raise StackFailed("vLLM's /metrics shows no kv_cache_usage_perc or num_gpu_blocks")
        requests = {kind: int(float(count)) for kind, count in _REQUESTS.findall(text)}
        usable = int(blocks[1]) - 1  # vLLM keeps the null block for itself
        return Inspection(
            scopes={view["scope"]: view for view in listed.raise_for_status().json()["scopes"]},
            blocks=usable,
            used_blocks=round(float(usage[1]) * usable),
            running=requests.get("running", 0),
            waiting=requests.get("waiting", 0),
        )

    # --- requests -------------------------------------------------------------------------------

    def body(self, prompt: str | list[int], **params: Any) -> dict[str, Any]:
        """An OpenAI completion body: greedy, never ended by the end-of-sequence token."""
        fixed = {"temperature": 0, "ignore_eos": True, "max_tokens": 16, "seed": 0}
        return {"model": self.model, "prompt": prompt, **fixed, **params}

    def complete(
        self, prompt: str | list[int], headers: Mapping[str, str] | None = None, **params: Any
    ) -> dict[str, Any]:
        """One whole completion; httpx.HTTPStatusError when it fails."""
        answer = self.http.post(
            "/v1/completions", json=self.body(prompt, **params), headers=headers
        )
        return answer.raise_for_status().json()

    def aclient(self) -> httpx.AsyncClient:
        """A client for streams; close it."""
        return httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(60.0, connect=5.0),
            limits=httpx.Limits(max_connections=None),
        )
