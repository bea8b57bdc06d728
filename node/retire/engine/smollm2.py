"""``python -m retire.engine.smollm2 GGUF OUT``: the demo's GGUF as a Hugging Face checkpoint.

Owns the mapping of a Llama GGUF to tensor names, config and tokenizer. A command of its own,
because it needs numpy and transformers; must never be imported by another module.
Progress goes to stdout, one JSON object a line: ``{"done": tensors, "total": tensors}``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

MODEL_TENSORS: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def tensor_name(gguf_name: str) -> str:
    """The Hugging Face name of a Llama GGUF tensor; KeyError for one that Llama does not have."""
    if gguf_name in MODEL_TENSORS:
        return MODEL_TENSORS[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS[part]}.{kind}"


def unpermuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undo the interleaving of rotary halves that GGUF applies to Q and K rows (rows, columns)."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, half, 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def llama_config(fields: dict[str, Any]) -> dict[str, Any]:
    """``config.json`` of a Llama model with tied embeddings."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "num_hidden_layers": fields["llama.block_count"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": fields["llama.rope.freq_base"],
        },
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": fields["llama.vocab_size"],
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def convert_tensors(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor de-quantized to float16, under its Hugging Face name."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, np.ndarray] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        weights = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weights = unpermuted(weights, heads[part])
        tensors[tensor_name(tensor.name)] = np.ascontiguousarray(weights, dtype=np.float16)
        print(json.dumps({"done": done, "total": len(reader.tensors)}), flush=True)
    return tensors


def save_tokenizer(gguf: Path, out: Path) -> None:
    """The tokenizer with its chat template, as transformers reads it from the GGUF."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(str(out))


def convert(gguf: Path, out: Path) -> None:
    """Write the checkpoint beside ``out``, then rename it: ``out`` is whole or absent."""
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    reader = GGUFReader(gguf)
    config = llama_config({name: field.contents() for name, field in reader.fields.items()})
    save_file(convert_tensors(reader, config), partial / "model.safetensors", {"format": "pt"})
    (partial / "config.json").write_text(json.dumps(config, indent=2))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (partial / "generation_config.json").write_text(json.dumps(generation))
    save_tokenizer(gguf, partial)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m retire.engine.smollm2 GGUF OUT")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
