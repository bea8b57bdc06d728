"""Two API processes over one engine: each has its own link and gates, and shares the mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_api_sidecar import ScriptedSidecar
from engine_api_world import until

from bench.tiny_models import tiny_model

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
AUTH = {"authorization": "Bearer sekret"}
PROMPT = " ".join(f"word{i} is number {i}," for i in range(40))
STREAMS = 8
START_S = 420


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": PROMPT, "temperature": 0, "ignore_eos": True, **more}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[ScriptedSidecar, str]]:
    """A sidecar to hold by the hand and a server of two processes with authentication on."""
    sidecar = ScriptedSidecar(tmp_path)
    await sidecar.start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "RETIRE_MAILBOX": str(sidecar.mailbox_path), "RETIRE_SIDECAR": f"unix:{sidecar.socket}",
        "VLLM_PLUGINS": "retire,retire_api", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # allows "uni"; see bench.stack
    }  # fmt: skip
    argv = [
        sys.executable, str(HERE / "engine_api_two_servers.py"), "--api-server-count", "2",
        "--api-key", "sekret", "--model", str(tiny_model()), "--served-model-name", "m",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "8192", "--distributed-executor-backend", "uni",
        "--block-size", "32",  # 0.32 takes multiples of 32
    ]  # fmt: skip
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        await until(lambda: sidecar.attached == 2 or server.poll() is not None, START_S)
        assert server.poll() is None, (tmp_path / "log").read_text()[-4000:]
        yield sidecar, f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        log.close()
        await sidecar.stop()


async def _stream(url: str, lines: list[str]) -> None:
    """One stream on a connection of its own: the kernel spreads them over both processes."""
    headers = AUTH | {"x-retire-scope": "plan"}
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as client,
        client.stream(
            "POST",
            "/v1/completions",
            headers=headers,
            json=_body(stream=True, max_tokens=6000, return_token_ids=True),
        ) as answer,
    ):
        async for line in answer.aiter_lines():
            if line:
                lines.append(line)


def _tokens(lines: list[str]) -> int:
    """Output tokens of a stream; one event may hold several."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return sum(len(choice["token_ids"]) for choice in choices)


async def _input(url: str, policy: str, **more: Any) -> httpx.Response:
    """One whole input on a connection of its own."""
    headers = AUTH | {"x-retire-scope": "inputs", "x-retire-on-new-input": policy}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return await client.post("/v1/completions", json=_body(**more), headers=headers)


async def _policies_hold(url: str) -> None:
    """However the kernel spreads a burst of inputs over the processes."""
    rejected = await asyncio.gather(
        *(_input(url, "reject", max_tokens=200) for _ in range(STREAMS))
    )
    codes = sorted(answer.status_code for answer in rejected)
    assert codes == [200] + [409] * (STREAMS - 1)
    queued = await asyncio.gather(*(_input(url, "enqueue", max_tokens=3) for _ in range(STREAMS)))
    assert [answer.status_code for answer in queued] == [200] * STREAMS
    burst = await asyncio.gather(
        *(_input(url, "interrupt", max_tokens=200) for _ in range(STREAMS))
    )
    ran = [answer for answer in burst if answer.status_code == 200]
    assert len(ran) == 1, [answer.text[:200] for answer in burst]
    newest = {answer.headers["x-retire-version"] for answer in ran}
    current = {answer.json()["error"].get("current") for answer in burst if answer not in ran}
    assert max(filter(None, current)) <= newest.pop()


async def test_one_supersede_ends_the_streams_of_every_process(
    servers: tuple[ScriptedSidecar, str],
) -> None:
    """Both gates ack; each stream ends with one terminal event; each token is counted. Policies
    see what runs in the other process."""
    sidecar, url = servers
    streams: list[list[str]] = [[] for _ in range(STREAMS)]
    reading = [asyncio.create_task(_stream(url, lines)) for lines in streams]
    await until(lambda: all(len(lines) > 3 for lines in streams), 120)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        refused = await client.post(
            "/v1/completions", json=_body(), headers={"x-retire-scope": "nobody"}
        )
        body = {"expected_version": "1.0", "stream": False, "request": _body(max_tokens=3)}
        answer = await client.post("/v1/scopes/plan/supersede", json=body, headers=AUTH)
    await asyncio.gather(*reading)
    receipt = answer.json()["receipt"]
    assert len(receipt["gates"]) == 2
    assert {hello.engine_boot_id for hello in sidecar.hellos} == {
        receipt["participants"][0]["boot_id"]
    }
    assert len({hello.gate for hello in sidecar.hellos}) == 2
    delivered = sorted(_tokens(lines) for lines in streams)
    counted = sorted(request["last_published_index"] + 1 for request in receipt["requests"])
    assert counted == delivered
    assert all('"code":"superseded"' in lines[-1] for lines in streams)
    assert receipt["certified_tokens"] > 0
    assert refused.status_code == 401  # and the sidecar never heard of it:
    assert {key.scope for key in sidecar.scopes} == {"plan"}
    await _policies_hold(url)
