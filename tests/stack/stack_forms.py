"""A stack that serves every form: two API processes, adapters, tools, vLLM's development routes.

Its history holds page digests. One for a session: it takes long to start.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.stack import ENGINE_ARGS, StackSettings
from bench.stack_streams import CHAT, COMPLETIONS, Agent, Flow, streamed

if TYPE_CHECKING:
    from bench.stack import Stack

ADAPTERS: Final = ("red", "blue")
RANK: Final = 8
SETTLED_S: Final = 20.0  # an untagged stream that was hung up ends within it
PLACES: Final = 8  # of a scope's streams: both processes get some


def settings(folder: Path) -> StackSettings:
    """How the stack is started; ``folder`` takes the adapters."""
    modules = [f"{name}={adapter(folder / name, seed)}" for seed, name in enumerate(ADAPTERS)]
    return StackSettings(
        engine_args=(
            *ENGINE_ARGS[:-3], "--max-num-seqs", "16", "--enforce-eager",
            "--api-server-count", "2",
            "--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2",
            "--lora-modules", *modules,
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        ),
        env={
            "RETIRE_LEASE_S": "60",
            "RETIRE_HISTORY_DIGESTS": "1",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
        },
    )  # fmt: skip


def adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter for ``qwen3-tiny``: random weights, strong enough to change every token."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Any] = {}
    for layer in range(4):
        for name, out in (("q_proj", 256), ("v_proj", 128)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (RANK, 256)), ("lora_B", (out, RANK))):
                weights[f"{at}.{part}.weight"] = torch.randn(shape, generator=generator) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "bias": "none",
              "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask for tokens: an entry point, and a body for it."""

    path: str
    body: dict[str, Any]

    def clean(self, stack: Stack) -> dict[str, Any]:
        """The whole answer to the same call without a scope."""
        answer = stack.http.post(self.path, json={"model": stack.model, **self.body})
        return answer.raise_for_status().json()

    def flow(self, agent: Agent, **more: Any) -> Flow:
        """The call as a stream of the scope."""
        body = streamed({"model": agent.stack.model, **self.body, **more})
        return Flow(agent.stack, body, agent.headers, path=self.path)


def completion(prompt: str | list[int], **more: Any) -> Form:
    """Greedy, without an end, unless ``more`` says otherwise."""
    fixed = {"temperature": 0, "ignore_eos": True, "max_tokens": 3000, "seed": 0}
    return Form(COMPLETIONS, {"prompt": prompt, **fixed, **more})


def chat(text: str, **more: Any) -> Form:
    """The same as a conversation."""
    fixed = {"temperature": 0, "ignore_eos": True, "max_tokens": 3000, "seed": 0}
    return Form(CHAT, {"messages": [{"role": "user", "content": text}], **fixed, **more})


def text_of(flow: Flow) -> str:
    """What a stream said, of its first choice: text, or a tool's arguments."""
    said = []
    for frame in flow.frames:
        for choice in (frame.body or {}).get("choices", ()):
            delta = choice.get("delta", choice)
            said.append(delta.get("text") or delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                said.append((call.get("function") or {}).get("arguments") or "")
    return "".join(said)


def audit(stack: Stack) -> None:
    """Cancel every scope; nothing may be pinned then, and no block in use."""
    for name, view in stack.inspect().scopes.items():
        if not view["cancelled"]:
            path, body = f"/v1/scopes/{name}/cancel", {"expected_version": view["version"]}
            answer = stack.http.post(path, json=body)
            assert answer.status_code in (200, 409), answer.text  # 409: with its parent, just now
    end_s = time.monotonic() + SETTLED_S
    while (seen := stack.inspect(settle=True)).pinned_blocks or seen.used_blocks:
        left = {name: view for name, view in seen.scopes.items() if view["pinned_blocks"]}
        assert time.monotonic() < end_s, f"{seen.used_blocks} blocks did not come back; pins {left}"
        time.sleep(0.1)


def choice_tokens(flow: Flow, choice: int) -> int:
    """Output tokens read of one choice."""
    choices = [c for f in tuple(flow.frames) for c in (f.body or {}).get("choices", ())]
    return sum(len(c.get("token_ids") or ()) for c in choices if c["index"] == choice)


def superseded(agent: Agent, olds: list[Flow], new: Form, **more: Any) -> tuple[Flow, Any]:
    """SUPERSEDE with ``new``; every old stream ends with the error and no token after the ack.

    The successor's stream, read to its end, and the receipt.
    """
    version = agent.version
    request = {"model": agent.stack.model, **new.body, **more}
    flow = agent.supersede_stream(version, request).ended()
    receipt = flow.receipt
    acknowledged_s = flow.frames[0].at_s
    for old in olds:
        old.ended(30)
        assert old.error is not None and old.error["code"] == "superseded", old
        assert old.error["current"] == receipt["to_version"] and not old.done
        assert {f.version for f in old.frames if f.tokens} <= {version}
        assert old.last_token_s <= acknowledged_s + 1.0
    assert flow.done and flow.error is None, flow
    assert {f.version for f in flow.frames if f.tokens} == {receipt["to_version"]}
    return flow, receipt
