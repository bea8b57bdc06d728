"""Models and parameters that cannot be fenced, judged by vLLM's own configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_api_world import Node

from retire.engine.publication import CURRENT

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # vLLM warns while it is imported
    pytest.mark.timeout(300),  # and takes its time
]
SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "torch_dtype": "float32",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "hybrid": SMALL | {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"] * 2,
    },
    "recurrent": SMALL | {
        "architectures": ["MambaForCausalLM"], "model_type": "mamba", "state_size": 16,
    },
    "attention": SMALL | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                          "head_dim": 16},
}  # fmt: skip


def config_of(folder: Path, kind: str, **args: Any) -> Any:
    """vLLM's configuration for a model of that kind: no weights are read."""
    from vllm import EngineArgs

    (folder / "config.json").write_text(json.dumps(MODELS[kind]))
    made = EngineArgs(model=str(folder), skip_tokenizer_init=True, max_model_len=256, **args)
    return made.create_engine_config()


@pytest.mark.parametrize(
    ("kind", "args", "why"),
    [
        ("hybrid", {}, "Lfm2ForCausalLM keeps recurrent state"),
        ("recurrent", {}, "MambaForCausalLM keeps recurrent state"),
        ("attention", {"runner": "pooling"}, "is served for pooling and makes no tokens"),
    ],
)
def test_a_model_that_cannot_be_fenced_never_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, args: dict[str, Any], why: str
) -> None:
    """Before an engine is made: SystemExit that names the model, the reason and what to do."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from retire.engine.seams import fenceable

    started: list[Any] = []
    stock = classmethod(lambda cls, config, **more: started.append(config))
    monkeypatch.setattr(AsyncLLM, "from_vllm_config", stock)
    fenceable.install()
    fenceable.install()
    with pytest.raises(SystemExit) as refused:
        AsyncLLM.from_vllm_config(config_of(tmp_path, kind, **args))
    said = str(refused.value)
    assert said.startswith("retire: refusing to serve: ") and why in said
    assert said.endswith("serve it with plain vLLM, without Retire") and started == []
    served = config_of(tmp_path, "attention")
    AsyncLLM.from_vllm_config(served)  # NEGATIVE CONTROL
    assert started == [served]


def request(**sampling: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    resumable = sampling.pop("resumable", False)
    return EngineCoreRequest(
        request_id="r", prompt_token_ids=[1, 2], mm_features=None,
        sampling_params=SamplingParams(**sampling), pooling_params=None, arrival_time=0.0,
        lora_request=None, cache_salt=None, data_parallel_rank=None, resumable=resumable,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs must be absent in a request with x-retire-scope"),
        ({"prompt_logprobs": 0}, "prompt_logprobs must be absent in a request with x-retire-scope"),
        ({"resumable": True}, "x-retire-scope must be absent for input that is streamed"),
    ],
)
def test_parameters_that_cannot_be_fenced_are_refused(
    node: Node, params: dict[str, Any], named: str
) -> None:
    """ValueError, which vLLM answers with 400; the same request without a scope passes."""
    from retire.engine.seams.tags import stamp

    with pytest.raises(ValueError, match=named):
        stamp(request(**params), node.tag(), "std")
    stamp(request(**params), None, "std")
    stamp(request(logprobs=1), node.tag(), "std")
    assert CURRENT.get() is None
