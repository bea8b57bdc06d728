"""One SUPERSEDE on a real stack, asked for by the command line, which traces as any agent may."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.stack_streams import Agent, Flow, streamed
from bench.trace_tree import missing

if TYPE_CHECKING:
    from bench.observatory import Observatory
    from bench.stack import Stack
    from bench.trace_tree import Trace

PLAN = [71] * 96


@dataclass(frozen=True, slots=True)
class Story:
    """What came of it."""

    agent: Agent
    caller: str  # trace id of the old work's caller
    receipt: dict[str, Any]
    trace: Trace


def tell(stack: Stack, observatory: Observatory) -> Story:
    """Old work runs, the command line supersedes it; waits until Jaeger has the whole tree."""
    agent, context = Agent.new(stack, "traced"), traceparent()
    body = streamed(stack.body(PLAN, max_tokens=2000))
    old = Flow(stack, body, {**agent.headers, "traceparent": context}).tokens_at_least(8)
    request = stack.body(PLAN, max_tokens=6)
    receipt = supersede(stack, agent, observatory.env, request)
    old.ended()
    found = observatory.until(
        receipt["trace_id"], lambda t: not missing(t) and t.named(f"text_completion {stack.model}")
    )
    return Story(agent, context.split("-")[1], receipt, found)


def traceparent(*, sampled: bool = True) -> str:
    """Of somebody else's span."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{int(sampled):02d}"


def supersede(
    stack: Stack, agent: Agent, env: dict[str, str], request: dict[str, Any]
) -> dict[str, Any]:
    """``retire supersede``; its receipt."""
    command = [sys.executable, "-m", "retire.cli", "supersede", agent.scope]
    options = ["--expected", agent.version, "--request", "-", "--url", stack.url, "--json"]
    done = subprocess.run(
        [*command, *options],
        input=json.dumps(request), env={**os.environ, **env},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])["receipt"]
