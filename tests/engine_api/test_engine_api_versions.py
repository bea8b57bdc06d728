"""However a vLLM release calls it: a request of a scope carries its tag, or is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from retire.engine.publication import CURRENT
from retire.engine.tag import EXTRA_ARG

if TYPE_CHECKING:
    from engine_api_world import Node

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # vLLM warns while it is imported
    pytest.mark.timeout(300),  # and takes its time: 0.32 inspects a model in a process of its own
]
RAW = {"prompt_token_ids": [11, 12, 13]}


@pytest.fixture(scope="module")
def processor() -> Any:
    """vLLM's own input processor, with the seam in place."""
    from vllm import EngineArgs
    from vllm.v1.engine.input_processor import InputProcessor

    from bench.tiny_models import tiny_model
    from retire.engine.seams import tags

    tags.install()
    args = EngineArgs(model=str(tiny_model("qwen3-tiny")), dtype="float32", max_model_len=256)
    return InputProcessor(args.create_engine_config())


async def _process(processor: Any, prompt: Any, **sampling: Any) -> Any:
    """As ``AsyncLLM.add_request`` does for a raw prompt: 0.32 leaves the event loop for it."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=4, **sampling)
    call = getattr(processor, "process_inputs_async", None)
    if call is None:
        return processor.process_inputs("r", prompt, params, supported_tasks=("generate",))
    return await call("r", prompt, params, supported_tasks=("generate",))


async def test_a_raw_prompt_carries_its_tag(node: Node, processor: Any) -> None:
    """The thread that tokenizes it knows no publication; the request must not pass without."""
    publication, tag = node.publications.open(), node.tag()
    publication.bind(tag, node.view)
    token = CURRENT.set(publication)
    try:
        request = await _process(processor, RAW)
    finally:
        CURRENT.reset(token)
    assert request.sampling_params.extra_args[EXTRA_ARG] == tag.to_wire()
    assert request.cache_salt == "retire:default:std"
    assert (publication.expected_id, publication.expected_choices) == ("r", 1)
    publication.unbind()


async def test_a_plain_raw_prompt_carries_none(processor: Any) -> None:
    """NEGATIVE CONTROL: without a publication there is nothing to carry, and no salt of ours."""
    request = await _process(processor, RAW, extra_args={EXTRA_ARG: "forged", "mine": 1})
    assert request.sampling_params.extra_args == {"mine": 1}
    assert request.cache_salt is None


@pytest.mark.parametrize("field", ["prompt_logprobs", "prompt_logprob_token_ids"])
def test_what_only_a_computed_prompt_has_is_refused(node: Node, field: str) -> None:
    """An inherited prefix is not computed; 0.32 has a second way to ask for its logprobs."""
    from retire.engine.seams.tags import stamp

    asked = {"prompt_logprobs": None, "prompt_logprob_token_ids": None, field: [[1]]}
    params = SimpleNamespace(extra_args=None, n=1, **asked)
    request = SimpleNamespace(sampling_params=params, cache_salt=None, resumable=False)
    with pytest.raises(ValueError, match=f"^{field} must be absent"):
        stamp(request, node.tag(), "std")
