"""A forward pass of a small Qwen2 in plain numpy and float64, to check recorded logprobs against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]


class Qwen2:
    """The model in a folder that holds `config.json` and `model.safetensors`, all of it float32."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        self.weights = read_safetensors(folder / "model.safetensors")

    def logprobs(self, ids: Sequence[int]) -> Array:
        """[len(ids), vocabulary]: the natural logarithm, at temperature 1, of what follows each id."""
        embeddings = self.weights["model.embed_tokens.weight"]
        x = embeddings[list(ids)]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self._attention(f"{name}.self_attn", self._norm(f"{name}.input_layernorm", x))
            x = x + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", x))
        head = embeddings if self.config["tie_word_embeddings"] else self.weights["lm_head.weight"]
        return log_softmax(self._norm("model.norm", x) @ head.T)

    def _attention(self, name: str, x: Array) -> Array:
        """Causal attention; each key and value head serves as many query heads as there are to one."""
        heads, shared = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        length, width = len(x), self.config["hidden_size"] // heads
        queries, keys, values = (
            self._linear(f"{name}.{part}_proj", x).reshape(length, -1, width).swapaxes(0, 1) for part in "qkv"
        )
        queries, keys = self._rotate(queries), self._rotate(keys)
        keys, values = (np.repeat(part, heads // shared, axis=0) for part in (keys, values))
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(width)
        future = np.triu(np.ones((length, length), dtype=bool), 1)
        weights = np.exp(log_softmax(np.where(future, -np.inf, scores)))
        return self._linear(f"{name}.o_proj", (weights @ values).swapaxes(0, 1).reshape(length, -1))

    def _rotate(self, x: Array) -> Array:
        """Rotary positions on [head, position, width]: the first half of a head's width pairs with the second."""
        _, length, width = x.shape
        theta = self.config["rope_parameters"]["rope_theta"]
        angles = np.outer(np.arange(length), theta ** -(np.arange(0, width, 2) / width))
        first, second = x[..., : width // 2], x[..., width // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _mlp(self, name: str, x: Array) -> Array:
        gate = self._linear(f"{name}.gate_proj", x)
        silu = gate / (1 + np.exp(-gate))
        return self._linear(f"{name}.down_proj", silu * self._linear(f"{name}.up_proj", x))

    def _norm(self, name: str, x: Array) -> Array:
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        normed: Array = x / scale * self.weights[f"{name}.weight"]
        return normed

    def _linear(self, name: str, x: Array) -> Array:
        y: Array = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias


def log_softmax(x: Array) -> Array:
    """Along the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    result: Array = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return result


def read_safetensors(path: Path) -> dict[str, Array]:
    """The float32 tensors of a file, as float64: a length, a JSON header with their places, then their bytes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"]).astype(np.float64)
    return tensors
