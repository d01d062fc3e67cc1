"""Writes a small Qwen2 as a GGUF file, which llama.cpp serves: the model of the tests needs no converter."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.data.model.qwen2 import read_safetensors

_ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_NORMAL, _USER_DEFINED = 1, 4
"""Types of tokens: as special ones they have no text in llama.cpp's answers; vLLM's have it where it is asked for."""
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(folder: Path, path: Path) -> None:
    """Writes the model of a folder (config, tokenizer, chat template, weights in float32) to one file."""
    fields, weights = list(_fields(folder)), sorted(_weights(folder))
    head, data = [b"GGUF", struct.pack("<IQQ", 3, len(weights), len(fields)), *fields], []
    size = 0
    for name, array in weights:
        values = array.astype("<f4").tobytes()
        shape = array.shape[::-1]
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, size))
        data.append(_padded(values))
        size += len(data[-1])
    path.write_bytes(_padded(b"".join(head)) + b"".join(data))


def _fields(folder: Path) -> Iterator[bytes]:
    config = json.loads((folder / "config.json").read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    added = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    tokens = sorted({**tokenizer["model"]["vocab"], **added}.items(), key=lambda pair: pair[1])
    yield _field("general.architecture", _STRING, "qwen2")
    for name, value in {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
    }.items():
        yield _field(f"qwen2.{name}", _UINT32, value)
    yield _field("qwen2.attention.layer_norm_rms_epsilon", _FLOAT32, config["rms_norm_eps"])
    yield _field("qwen2.rope.freq_base", _FLOAT32, config["rope_parameters"]["rope_theta"])
    yield _field("tokenizer.ggml.model", _STRING, "gpt2")
    yield _field("tokenizer.ggml.pre", _STRING, "qwen2")
    yield _field("tokenizer.ggml.tokens", _ARRAY, (_STRING, [text for text, _ in tokens]))
    kinds = [_USER_DEFINED if text in added else _NORMAL for text, _ in tokens]
    yield _field("tokenizer.ggml.token_type", _ARRAY, (_INT32, kinds))
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]]
    yield _field("tokenizer.ggml.merges", _ARRAY, (_STRING, merges))
    yield _field("tokenizer.ggml.eos_token_id", _UINT32, config["eos_token_id"])
    yield _field("tokenizer.ggml.padding_token_id", _UINT32, config["pad_token_id"])
    yield _field("tokenizer.ggml.add_bos_token", _BOOL, False)
    yield _field("tokenizer.chat_template", _STRING, (folder / "chat_template.jinja").read_text())


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, array in read_safetensors(folder / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if module in outer:
            yield f"{outer[module]}.{kind}", array
        else:
            _, _, layer, part = module.split(".", 3)
            yield f"blk.{layer}.{_NAMES[part]}.{kind}", array


def _field(name: str, kind: int, value: Any) -> bytes:
    return _text(name) + struct.pack("<I", kind) + _value(kind, value)


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        return _array(*value)
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}[kind], value)


def _array(kind: int, values: Sequence[Any]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(_value(kind, value) for value in values)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
