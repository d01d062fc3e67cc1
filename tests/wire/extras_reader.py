"""What the bytes of vLLM's answers hold of their tokens, read without the library: JSON, base64 and .npy by hand.

Of chat, completions and `/inference/v1/generate` of vLLM 0.32, streamed and not. Only of well-formed answers: others
raise.
"""

from __future__ import annotations

import ast
import base64
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

Rows = list[list[tuple[int | None, float]]]
"""For each position, the (id, logprob) pairs in their order; no id where a token is named by its text."""


@dataclass
class Choice:
    """One choice of an answer; None for what the answer does not hold."""

    prompt: list[int] | None = None
    ids: list[int] | None = None
    prompt_rows: Rows | None = None
    """Of each prompt token, itself first."""
    echoed: list[float | None] | None = None
    """Logprobs of the prompt in front of those of the completion."""
    top_rows: Rows | None = None
    mask: list[list[int]] | None = None
    experts: Any = None
    versions: list[tuple[int, int, str]] | None = None


def read(path: str, response: bytes) -> dict[int, Choice]:
    """The choices of an answer by index; ``path`` of the request."""
    parts = bodies(response)
    found: dict[int, Choice] = {}
    for body in parts:
        for part in body.get("choices") or ():
            choice = found.setdefault(part["index"], Choice())
            _add_ids(choice, body, part)
            _add_scores(choice, body, part)
            _add_rows(choice, part.get("logprobs") or {}, path)
            _add_engine(choice, part)
    # Of the others it stands around the choices, in a stream in the first chunk alone.
    prompts = [body["prompt_token_ids"] for body in parts if body.get("prompt_token_ids") is not None]
    for choice in found.values():
        choice.prompt = choice.prompt or (prompts[0] if prompts else None)
    return found


def bodies(response: bytes) -> list[dict[str, Any]]:
    """The objects of an answer: one, or one for each event of a stream."""
    if response[:1] == b"{":
        return [json.loads(response)]
    lines = [line[6:] for line in response.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _add_ids(choice: Choice, body: dict[str, Any], part: dict[str, Any]) -> None:
    # Of completions on the choice: there each has its own prompt.
    choice.prompt = choice.prompt or part.get("prompt_token_ids")
    if part.get("token_ids") is not None:
        choice.ids = [*(choice.ids or ()), *part["token_ids"]]


def _add_scores(choice: Choice, body: dict[str, Any], part: dict[str, Any]) -> None:
    scores = part.get("prompt_logprobs") or body.get("prompt_logprobs")
    if scores is not None:
        choice.prompt_rows = [_scored(one) for one in scores]


def _scored(one: dict[str, Any] | None) -> list[tuple[int | None, float]]:
    return [] if one is None else [(int(name), entry["logprob"]) for name, entry in one.items()]


def _add_rows(choice: Choice, logprobs: dict[str, Any], path: str) -> None:
    if path == "/v1/completions":
        rows = _completions_rows(choice, logprobs)
    else:
        rows = [[_entry(one) for one in entry["top_logprobs"]] for entry in logprobs.get("content") or ()]
    if rows:
        choice.top_rows = [*(choice.top_rows or ()), *rows]


def _completions_rows(choice: Choice, logprobs: dict[str, Any]) -> Rows:
    numbers = logprobs.get("token_logprobs") or []
    if numbers and numbers[0] is None and choice.echoed is None and choice.prompt is not None:
        # `echo`: the prompt's come first, of which the first token has none.
        choice.echoed = numbers[: len(choice.prompt)]
        skipped = len(choice.prompt)
    else:
        skipped = 0
    dicts = (logprobs.get("top_logprobs") or [])[skipped:]
    return [[(_spelled(token), value) for token, value in one.items()] for one in dicts]


def _entry(one: dict[str, Any]) -> tuple[int | None, float]:
    return one["token_id"] if "token_id" in one else _spelled(one["token"]), one["logprob"]


def _spelled(token: str) -> int | None:
    """The id in `token_id:N`; None for a text, which is no id."""
    head, _, number = token.partition("token_id:")
    return int(number) if not head and number else None


def _add_engine(choice: Choice, part: dict[str, Any]) -> None:
    if part.get("sampling_mask") is not None:
        choice.mask = [*(choice.mask or ()), *part["sampling_mask"]]
    if part.get("routed_experts") is not None:
        choice.experts = npy(part["routed_experts"])
    if part.get("weight_versions") is not None:
        choice.versions = [(one["start"], one["end"], one["version"]) for one in part["weight_versions"]]


def npy(text: str) -> Any:
    """The array of a .npy file in base64: version 1.0, C order."""
    data = base64.b64decode(text, validate=True)
    if data[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError(f"no .npy file of version 1.0: {data[:8]!r}")
    (size,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10 : 10 + size].decode("latin-1"))
    if header["fortran_order"]:
        raise ValueError("columns first")
    return np.frombuffer(data[10 + size :], header["descr"]).reshape(header["shape"])
