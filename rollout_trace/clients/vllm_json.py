"""What vLLM is asked for, from the arguments of its methods, and its ``RequestOutput``, as JSON of ours.

Both are in the shape of ``rollout_trace.wire.sampled``; an output is whole, or what is new of it in a stream.
"""

from __future__ import annotations

import base64
import copy
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

_NO_SETTINGS = frozenset({"output_kind", "skip_clone"})
"""Parameters that do not change what is sampled."""
_ALWAYS = ("n", "temperature", "max_tokens")
_CHAT_FIELDS = ("chat_template", "chat_template_kwargs", "mm_processor_kwargs", "tokenization_kwargs")
_CHAT_FLAGS = {"add_generation_prompt": True, "continue_final_message": False}
_ANSWER_EXTRA = ("metrics", "num_cache_creation_tokens", "encoder_prompt_token_ids", "prompt_token_id_logprobs",
                 "kv_transfer_params", "ec_transfer_params")  # fmt: skip
_CHOICE_EXTRA = ("spec_decode_metrics",)


def prompts_in(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prompts of a call, as vLLM takes them: one text, one object, one list of ids, or several of them."""
    prompts = arguments["prompts"]
    is_one = isinstance(prompts, (str, bytes, Mapping)) or is_ids(prompts)
    return [prompt_fields(one) for one in ([prompts] if is_one else prompts)]


def is_ids(value: Any) -> bool:
    """Whether a prompt is a list of token ids."""
    # Each type once: prompts have thousands of ids.
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(issubclass(one, int) for one in set(map(type, value)))
    )


def conversations_in(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversations of ``LLM.chat``, one or several: messages and tools, and what else shaped the prompts."""
    messages = arguments["messages"]
    is_one = len(messages) and isinstance(messages[0], Mapping)
    shared = {"tools": list(arguments["tools"])} if arguments.get("tools") else {}
    shared.update((name, arguments[name]) for name in _CHAT_FIELDS if arguments.get(name) is not None)
    shared.update((name, arguments[name]) for name, usual in _CHAT_FLAGS.items() if arguments.get(name, usual) != usual)
    return [{"messages": list(one), **shared} for one in ([messages] if is_one else messages)]


def params_of(params: Any, count: int) -> list[Any]:
    """The sampling parameters of each prompt: one for all, or one for each."""
    is_list = isinstance(params, Sequence)
    return [params[at] if at < len(params) else None for at in range(count)] if is_list else [params] * count


def with_logprobs(params: Any) -> Any:
    """Parameters that ask for the sampled tokens' logprobs: copies of those that ask for none."""
    if isinstance(params, Sequence):
        return [with_logprobs(one) for one in params]
    if getattr(params, "logprobs", 0) is not None or getattr(params, "logprob_token_ids", None) is not None:
        return params
    params = copy.copy(params)
    params.logprobs = 0
    return params


def prompt_fields(prompt: Any) -> dict[str, Any]:
    """The prompt of a request: its ids where they were given, else its text, else neither."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if is_ids(prompt):
        return {"prompt": list(prompt)}
    fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else vars_of(prompt)
    found: dict[str, Any] = {}
    ids, text = fields.get("prompt_token_ids"), fields.get("prompt")
    if ids is not None and len(ids):
        found["prompt"] = list(ids)
    elif isinstance(text, str):
        found["prompt"] = text
    media = fields.get("multi_modal_data")
    if isinstance(media, Mapping):
        # How many there are: what they are has no place in JSON.
        found["multi_modal_data"] = {
            name: len(items) if isinstance(items, (list, tuple)) else 1 for name, items in media.items()
        }
    return found


def sampling_fields(params: Any, lora: Any) -> dict[str, Any]:
    """The sampling parameters that are not vLLM's defaults, always ``n``, ``temperature``, ``max_tokens``; the LoRA."""
    found: dict[str, Any] = {}
    if params is not None:
        defaults = _defaults(params.__class__)
        for name in _names(params):
            value = getattr(params, name, None)
            if value is not None and (name in _ALWAYS or value != defaults.get(name)):
                found[name] = value
                if name == "structured_outputs":
                    own = {key: one for key, one in vars_of(value).items() if one is not None and key[:1] != "_"}
                    found[name] = own or value
        if hasattr(params, "beam_width"):
            found["use_beam_search"] = True
    if lora is not None:
        names = ("lora_name", "lora_int_id", "lora_path")
        found["lora_request"] = {name: getattr(lora, name, None) for name in names}
    return found


def _names(params: Any) -> Sequence[str]:
    names = getattr(type(params), "__struct_fields__", None) or tuple(vars_of(params))
    return [name for name in names if not name.startswith("_") and name not in _NO_SETTINGS]


@functools.lru_cache(maxsize=16)
def _defaults(kind: Any) -> Mapping[str, Any]:
    try:
        plain = kind()
    except Exception:
        # Its parameters have no defaults, as those of a beam search.
        return {}
    return {name: getattr(plain, name, None) for name in _names(plain)}


def vars_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object by name; none of one that has no ``__dict__``."""
    names = getattr(type(value), "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if names else getattr(value, "__dict__", {})


def answer_of(output: Any, sent: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a call, from a ``RequestOutput``, finished or not.

    ``sent`` are the prompt's ids, None where it was not sent as ids; ``facts`` what the output does not have:
    ``logprobs_mode``, ``policy_version``.
    """
    return {**head_of(output, sent, facts), "choices": [choice_of(one) for one in output.outputs]}


def head_of(output: Any, sent: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The answer around its choices."""
    ids = getattr(output, "prompt_token_ids", None)
    identity = getattr(output, "request_id", None)
    head: dict[str, Any] = {"id": None if identity is None else str(identity), "lists_sampled": True, **facts}
    if ids is not None and ids != sent:
        head["prompt_token_ids"] = list(ids)
    cached = getattr(output, "num_cached_tokens", None)
    if cached is not None:
        head["cached_tokens"] = cached
    scores = getattr(output, "prompt_logprobs", None)
    if scores is not None and ids is not None:
        head["prompt_logprobs"] = _own(scores, ids)
        if any(row is not None and len(row) > 1 for row in scores):
            head["prompt_top_tokens"] = _rows(scores)
    head["extra"] = _extra(output, _ANSWER_EXTRA)
    return head


def choice_of(one: Any, begin: int = 0) -> dict[str, Any]:
    """A ``CompletionOutput``, without its tokens before ``begin``."""
    ids, scores = list(one.token_ids[begin:] if begin else one.token_ids), one.logprobs
    choice: dict[str, Any] = {"index": one.index, "text": one.text, "token_ids": ids}
    if scores is not None:
        scores = scores[begin:] if begin else scores
        found = [row.get(token) for row, token in zip(scores, ids, strict=False)]
        # As many as came: another number than that of the ids is withheld where it is read.
        choice["logprobs"] = [None if item is None else item.logprob for item in found] + [None] * (
            len(scores) - len(found)
        )
        texts = [None if item is None else item.decoded_token for item in found]
        if texts and texts[0] is not None:
            choice["tokens"] = texts
        if max(map(len, scores), default=0) > 1:
            choice["top_tokens"] = _rows(scores)
    choice["finish_reason"], choice["stop_reason"] = one.finish_reason, one.stop_reason
    mask, experts = getattr(one, "sampling_mask", None), getattr(one, "routed_experts", None)
    versions, extra = getattr(one, "weight_versions", None), _extra(one, _CHOICE_EXTRA)
    if mask is not None:
        choice["sampling_mask"] = mask.token_ids[begin:]
    if experts is not None:
        choice["routed_experts"] = _npy(experts)
    if versions is not None:
        choice["weight_versions"] = [asdict(span) for span in versions]
    if extra:
        choice["extra"] = extra
    return choice


def beams_of(output: Any, sent: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a beam search: one choice for each of its sequences, the best first."""
    sequences = output.sequences
    choices = []
    prompt: list[int] | None = None
    for index, one in enumerate(sequences):
        # Each holds its prompt; there are as many logprobs as sampled tokens, and an end token need not have one.
        if prompt is None and (own := _own_prompt(one).get("prompt_token_ids")) is not None:
            prompt = list(own)
        ids = list(one.tokens[len(prompt) :] if prompt is not None else ())
        choices.append(choice_of(_Beam(index, _text_of(one), ids, one)))
    named = {} if prompt is None or prompt == sent else {"prompt_token_ids": prompt}
    return {**facts, **named, "choices": choices}


class _Beam:
    """A sequence of a beam search with the names of a ``CompletionOutput``."""

    def __init__(self, index: int, text: str | None, ids: Sequence[int], sequence: Any) -> None:
        self.index, self.text, self.token_ids, self.logprobs = index, text, ids, sequence.logprobs
        self.finish_reason, self.stop_reason = sequence.finish_reason, sequence.stop_reason


def _own_prompt(sequence: Any) -> Mapping[str, Any]:
    prompt = getattr(sequence, "orig_prompt", None)
    prompt = prompt.get("decoder_prompt", prompt) if isinstance(prompt, Mapping) else None
    return prompt if isinstance(prompt, Mapping) else {}


def _text_of(sequence: Any) -> str | None:
    """The text of a beam without that of its prompt, which vLLM has in it; None where that is not known."""
    prompt = _own_prompt(sequence).get("prompt")
    is_known = isinstance(prompt, str) and isinstance(sequence.text, str) and sequence.text.startswith(prompt)
    return sequence.text[len(prompt) :] if is_known and prompt else None


class Deltas:
    """What is new in each output of a stream. Those of vLLM are deltas, or repeat what came before."""

    def __init__(self, sent: Any, facts: Mapping[str, Any], *, are_deltas: bool) -> None:
        """``sent``, ``facts``: as for ``answer_of``. ``are_deltas``: the caller asked for deltas."""
        self._sent, self._facts, self._are_deltas = sent, facts, are_deltas
        self._is_first = True
        self._seen: dict[int, tuple[int, str]] = {}

    def next(self, output: Any) -> dict[str, Any]:
        """The next object of the answer."""
        chunk: dict[str, Any] = {"extra": _extra(output, _ANSWER_EXTRA)}
        if self._is_first:
            chunk = head_of(output, self._sent, self._facts)
            self._is_first = False
        chunk["choices"] = [choice_of(one) if self._are_deltas else self._rest(one) for one in output.outputs]
        return chunk

    def _rest(self, one: Any) -> dict[str, Any]:
        count, text = self._seen.get(one.index, (0, ""))
        self._seen[one.index] = len(one.token_ids), one.text
        choice = choice_of(one, count)
        if one.text.startswith(text):
            choice["text"] = one.text[len(text) :]
        else:
            # A stop string that was found is taken out of the text.
            choice["text_from"] = 0
        return choice


def _own(scores: Any, ids: Sequence[int]) -> list[float | None]:
    """The logprob of each token of the prompt."""
    rows = [None if row is None else row.get(token) for row, token in zip(scores, ids, strict=False)]
    return [None if item is None else item.logprob for item in rows]


def _rows(scores: Any) -> dict[str, Any]:
    rows = [row or {} for row in scores]
    return {"ids": [list(row) for row in rows], "logprobs": [[one.logprob for one in row.values()] for row in rows]}


def _extra(thing: Any, names: Sequence[str]) -> dict[str, Any]:
    found = {name: value for name in names if (value := getattr(thing, name, None)) is not None}
    return {name: asdict(value) if is_dataclass(value) else value for name, value in found.items()}  # type: ignore[arg-type]


def _npy(experts: Any) -> str:
    """An array of numpy as base64 of a ``.npy`` file, in which vLLM's server sends it too."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(experts), allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()
