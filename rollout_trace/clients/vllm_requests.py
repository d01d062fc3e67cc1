"""What vLLM is asked for, from the arguments of ``LLM.generate``, ``LLM.chat`` and ``AsyncLLM.generate``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

_NO_SETTINGS = frozenset({"output_kind", "skip_clone"})
"""Parameters that do not change what is sampled."""
_ALWAYS = ("n", "temperature", "max_tokens")
_CHAT_FIELDS = ("chat_template", "chat_template_kwargs", "mm_processor_kwargs", "tokenization_kwargs")
_CHAT_FLAGS = {"add_generation_prompt": True, "continue_final_message": False}


def prompts_of(prompts: Any) -> Sequence[Any]:
    """The prompts of a call, as vLLM takes them: one text, one object, one list of ids, or several of them."""
    if isinstance(prompts, (str, bytes, Mapping)) or is_ids(prompts):
        return [prompts]
    return list(prompts)


def is_ids(value: Any) -> bool:
    """Whether a prompt is a list of token ids."""
    # Each type once: prompts have thousands of ids.
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(issubclass(one, int) for one in set(map(type, value)))
    )


def conversations_of(messages: Any) -> Sequence[Any]:
    """The conversations of ``LLM.chat``: one, or several."""
    return [messages] if len(messages) and isinstance(messages[0], Mapping) else list(messages)


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


def chat_fields(messages: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The messages and tools of a request, and what else shaped its prompt."""
    found = {"messages": list(messages)}
    if arguments.get("tools"):
        found["tools"] = list(arguments["tools"])
    found.update((name, arguments[name]) for name in _CHAT_FIELDS if arguments.get(name) is not None)
    found.update((name, arguments[name]) for name, usual in _CHAT_FLAGS.items() if arguments.get(name, usual) != usual)
    return found


def sampling_fields(params: Any, lora: Any) -> dict[str, Any]:
    """The sampling parameters that are not vLLM's defaults, always ``n``, ``temperature``, ``max_tokens``; the LoRA."""
    found: dict[str, Any] = {}
    if params is not None:
        defaults = _defaults(_kind(params))
        for name in _names(params):
            value = getattr(params, name, None)
            if value is not None and (name in _ALWAYS or value != defaults.get(name)):
                found[name] = _without_nulls(value) if name == "structured_outputs" else value
        if hasattr(params, "beam_width"):
            found["use_beam_search"] = True
    if lora is not None:
        names = ("lora_name", "lora_int_id", "lora_path")
        found["lora_request"] = {name: getattr(lora, name, None) for name in names}
    return found


def _kind(thing: object) -> Any:
    return type(thing)


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


def _without_nulls(value: Any) -> Any:
    return {name: one for name, one in vars_of(value).items() if one is not None and not name.startswith("_")} or value


def vars_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object by name; none of one that has no ``__dict__``."""
    names = getattr(type(value), "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if names else getattr(value, "__dict__", {})
