"""Tiny random-weight models for tests and benchmarks: seeded, varied greedy output, chat template.

Random weights need sharp attention, or no comparison of logprobs has any power: two prefixes would
give the same numbers. Here matrices have std 2/sqrt(fan_in) and embeddings std 1.

Usage: python -m bench.tiny_models OUT_DIR
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Final

VOCABULARY: Final = 2048
SEED: Final = 1234
NAMES: Final = ("qwen3-tiny", "gemma3-swa-tiny", "qwen3-deep", "qwen3-long")
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def default_dir() -> Path:
    """Where models are cached: $XDG_CACHE_HOME/retire/models."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "retire" / "models"


def tiny_model(name: str = "qwen3-tiny", root: Path | None = None) -> Path:
    """Path of the named model (one of ``NAMES``), made on first use."""
    path = (root or default_dir()) / name
    if not (path / "done").exists():
        _make(name, path)
    for file in path.iterdir():
        file.chmod(0o644)  # safetensors makes 0600; a container runs as somebody else
    return path


def _config(name: str):
    from transformers import Gemma3TextConfig, Qwen3Config

    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 32768,
        "eos_token_id": 1,
        "bos_token_id": None,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    match name:
        case "qwen3-tiny":
            return Qwen3Config(**common)
        case "qwen3-deep-tiny":  # so that ranks can agree on a layer well before the last one
            return Qwen3Config(**{**common, "num_hidden_layers": 12})
        case "qwen3-deep":  # a prefill of 1024 tokens takes about half a second, in eight layers
            size = {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 8}
            return Qwen3Config(**{**common, **size})
        case "qwen3-long":  # 8192 tokens in about a second: its attention is the smaller part
            heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
            return Qwen3Config(
                **{**common, **heads, "num_hidden_layers": 2, "intermediate_size": 1024}
            )
        case "gemma3-swa-tiny":
            layers = ["sliding_attention", "full_attention"] * 2
            return Gemma3TextConfig(
                **common, sliding_window=256, layer_types=layers, query_pre_attn_scalar=64
            )
        case _:
            raise ValueError(f"model must be one of {', '.join(NAMES)}; got {name!r}")


def _make(name: str, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    path.mkdir(parents=True, exist_ok=True)
    config = _config(name)
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter_name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.copy_(
                    torch.randn(weight.shape, generator=generator)
                    * _std(name, parameter_name, weight)
                )
    model.save_pretrained(path)
    _save_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}))
    (path / "done").touch()


def _std(name: str, parameter: str, weight) -> float:
    if "embed" in parameter:
        # Gemma scales its embeddings by sqrt(hidden): a wide std makes greedy echo the last token.
        return 0.1 if name.startswith("gemma3") else 1.0
    return 1.0 if "lm_head" in parameter else 2.0 / weight.shape[1] ** 0.5


def _save_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(3000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<|eos|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (" ".join(rng.choices(words, k=12)) for _ in range(3000)), trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|eos|>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)


if __name__ == "__main__":
    for model_name in NAMES:
        print(tiny_model(model_name, Path(sys.argv[1]) if len(sys.argv) > 1 else None))
