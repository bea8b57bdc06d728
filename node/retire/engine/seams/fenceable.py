"""Seam: a model that cannot be fenced is refused before its engine starts, with the reason.

Wraps ``vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config`` (every API process builds its engine
client there, before weights are loaded). Tested on 0.26.0; no upstream hook.
"""

from __future__ import annotations

import functools
from typing import Any, Final

_MARK: Final = "__retire_seam__"


def unfenceable(config: Any) -> str | None:
    """Why nothing of this ``VllmConfig``'s model could be fenced; None: it can."""
    model = config.model_config
    name = ", ".join(model.architectures or ()) or model.model
    if model.runner_type == "pooling":
        return f"{name} is served for pooling and makes no tokens, so nothing can be fenced"
    if model.is_hybrid or model.is_attention_free:
        return (
            f"{name} keeps recurrent state that is updated in place: work that was given up leaves "
            "its mark there, and a prefix cannot be handed over by its blocks"
        )
    return None


def install() -> None:
    """Wrap the factory; a second call changes nothing."""
    from vllm.v1.engine.async_llm import AsyncLLM

    stock = AsyncLLM.__dict__["from_vllm_config"].__func__
    if not hasattr(stock, _MARK):
        AsyncLLM.from_vllm_config = classmethod(_refusing(stock))  # type: ignore[assignment]


def _refusing(stock: Any) -> Any:
    @functools.wraps(stock)
    def from_vllm_config(cls: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        reason = unfenceable(vllm_config)
        if reason is not None:
            raise SystemExit(
                f"retire: refusing to serve: {reason}; serve it with plain vLLM, without Retire"
            )
        return stock(cls, vllm_config, *args, **kwargs)

    setattr(from_vllm_config, _MARK, True)
    return from_vllm_config
