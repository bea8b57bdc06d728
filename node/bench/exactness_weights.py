"""Dummy weights under which what a request attends to shows in its logprobs.

vLLM's ``load_format="dummy"`` draws everything nearly at zero, the weights of norms too: attention
is flat and adds nothing, and two prefixes give the same numbers. Any comparison of outputs would
pass, whatever is broken. Owns the change of weights; must never measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bench.lab import Lab

POWER: Final = 0.05  # nats that another input must move an answer by, or nothing can be told
SHARP: Final = 2.0  # weight of the norms of queries and keys: each token attends to few others
LOUD: Final = 8.0  # what attention adds to the residual stream, times
HEAD_STD: Final = 0.05  # of the output matrix: the likeliest tokens are told apart
_DONE: Final = "retire_sharpened"  # attribute of a model


def sharpen(lab: Lab) -> bool:
    """Change a model of dummy weights in place, once; False where weights have power already."""
    import torch

    if lab.core.vllm_config.load_config.load_format != "dummy":
        return False
    if getattr(lab.model, _DONE, False):
        return True
    setattr(lab.model, _DONE, True)
    torch.manual_seed(1)
    with torch.inference_mode():
        for name, weight in lab.model.named_parameters():
            _change(name, weight)
    return True


def _change(name: str, weight: Any) -> None:
    import torch

    if "q_norm" in name or "k_norm" in name:
        weight.fill_(SHARP)
    elif name.endswith("norm.weight"):
        weight.fill_(1.0)  # as a trained one: what it norms keeps its size
    elif "o_proj" in name:
        weight.mul_(LOUD)
    elif "lm_head" in name:
        weight.copy_(torch.randn(weight.shape, device=weight.device) * HEAD_STD)
