"""A table of the places where providers, and tools whose traces are read, put token counts and costs.

To read another provider's, add a row. Its evidence is what ``seen`` names: a recording, or the source of an SDK.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeGuard, get_args

from msgspec import Struct

Path: TypeAlias = tuple[str, ...]
Shape: TypeAlias = Literal["openai", "anthropic", "google", "ollama", "spans", "atif", "codex", "inspect", "verifiers",
                           "gemini_cli", "kimi_code", "qwen_code"]  # fmt: skip
"""Who names the counts: an API, whoever serves it, or a tool that writes traces."""
Count: TypeAlias = Literal["input", "output", "cache_read", "cache_write", "reasoning", "tools", "total"]
"""A field of ``Usage``; ``tools`` are results of tools in the prompt, ``total`` all tokens of prompt and completion."""


class CountPlace(Struct, frozen=True):
    """A place of a count."""

    shape: Shape
    count: Count
    path: Path
    """From the object of the counts; of spans the name of an attribute."""
    seen: str
    """Who puts it there, and the evidence."""
    beside: bool = False
    """``input`` or ``output``, under their own names, do not include it: it is added to them."""


COUNTS: Final = (
    CountPlace("openai", "input", ("prompt_tokens",), "chat and completions of all engines, recorded"),
    CountPlace("openai", "input", ("input_tokens",), "responses of all engines, recorded"),
    CountPlace("openai", "output", ("completion_tokens",), "chat and completions of all engines, recorded"),
    CountPlace("openai", "output", ("output_tokens",), "responses of all engines, recorded"),
    CountPlace("openai", "total", ("total_tokens",), "all engines, recorded"),
    CountPlace("openai", "cache_read", ("prompt_tokens_details", "cached_tokens"), "vLLM 0.32, recorded"),
    CountPlace("openai", "cache_read", ("input_tokens_details", "cached_tokens"), "vLLM 0.32 responses, recorded"),
    CountPlace("openai", "cache_read", ("prompt_cache_hit_tokens",), "DeepSeek: @ai-sdk/deepseek 2.0.69, source"),
    CountPlace("openai", "cache_read", ("cached_tokens",), "Moonshot: @ai-sdk/moonshotai 2.0.61, source"),
    CountPlace("openai", "cache_read", ("num_cached_tokens",), "Mistral: @ai-sdk/mistral 3.0.69, source"),
    CountPlace("openai", "cache_read", ("prompt_token_details", "cached_tokens"), "Mistral: as the row before"),
    CountPlace("openai", "cache_read", ("cached_prompt_text_tokens",), "xAI: genai-prices 0.2.3, source"),
    CountPlace("openai", "cache_read", ("cache_read_input_tokens",), "LiteLLM 1.110 over Anthropic, source"),
    CountPlace("openai", "cache_write", ("prompt_tokens_details", "cache_write_tokens"), "OpenRouter, SDK 1.3 types"),
    CountPlace("openai", "cache_write", ("input_tokens_details", "cache_write_tokens"), "genai-prices 0.2.3, source"),
    CountPlace("openai", "cache_write", ("prompt_tokens_details", "cache_creation_tokens"), "LiteLLM 1.110, source"),
    CountPlace("openai", "cache_write", ("cache_creation_input_tokens",), "LiteLLM 1.110 over Anthropic, source"),
    CountPlace("openai", "reasoning", ("completion_tokens_details", "reasoning_tokens"), "OpenAI, SDK types"),
    CountPlace("openai", "reasoning", ("output_tokens_details", "reasoning_tokens"), "vLLM 0.32 responses, recorded"),
    CountPlace("openai", "reasoning", ("reasoning_tokens",), "SGLang 0.5.23, source; Perplexity, SDK 0.46 types"),
    CountPlace("anthropic", "input", ("input_tokens",), "Anthropic and all engines, recorded"),
    CountPlace("anthropic", "output", ("output_tokens",), "Anthropic and all engines, recorded"),
    CountPlace("anthropic", "cache_read", ("cache_read_input_tokens",), "Anthropic, SDK types", beside=True),
    CountPlace("anthropic", "cache_write", ("cache_creation_input_tokens",), "Anthropic, SDK types", beside=True),
    CountPlace("anthropic", "reasoning", ("output_tokens_details", "thinking_tokens"), "Anthropic, SDK types"),
    CountPlace("google", "input", ("promptTokenCount",), "google-genai, SDK types"),
    CountPlace("google", "tools", ("toolUsePromptTokenCount",), "google-genai, SDK types", beside=True),
    CountPlace("google", "output", ("candidatesTokenCount",), "google-genai, SDK types"),
    CountPlace("google", "total", ("totalTokenCount",), "google-genai, SDK types"),
    CountPlace("google", "cache_read", ("cachedContentTokenCount",), "google-genai, SDK types"),
    CountPlace("google", "reasoning", ("thoughtsTokenCount",), "google-genai, SDK types", beside=True),
    CountPlace("ollama", "input", ("prompt_eval_count",), "Ollama, source"),
    CountPlace("ollama", "output", ("eval_count",), "Ollama, source"),
    CountPlace("spans", "input", ("gen_ai.usage.input_tokens",), "OpenTelemetry's conventions"),
    CountPlace("spans", "input", ("gen_ai.usage.prompt_tokens",), "OpenTelemetry before 1.28; OpenLLMetry"),
    CountPlace("spans", "input", ("llm.token_count.prompt",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "output", ("gen_ai.usage.output_tokens",), "OpenTelemetry's conventions"),
    CountPlace("spans", "output", ("gen_ai.usage.completion_tokens",), "OpenTelemetry before 1.28; OpenLLMetry"),
    CountPlace("spans", "output", ("llm.token_count.completion",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "total", ("gen_ai.usage.total_tokens",), "OpenLLMetry 0.5.1, source"),
    CountPlace("spans", "total", ("llm.usage.total_tokens",), "OpenLLMetry 0.5.1, source"),
    CountPlace("spans", "total", ("llm.token_count.total",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "cache_read", ("gen_ai.usage.cache_read.input_tokens",), "OpenTelemetry's conventions"),
    CountPlace("spans", "cache_read", ("gen_ai.usage.cache_read_input_tokens",), "OpenLLMetry before 0.5, source"),
    CountPlace("spans", "cache_read", ("gen_ai.usage.details.cache_read_tokens",), "Pydantic AI before 2, spans"),
    CountPlace("spans", "cache_read", ("llm.token_count.prompt_details.cache_read",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "cache_read", ("llm.token_count.prompt_details.cache_input",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "cache_write", ("gen_ai.usage.cache_creation.input_tokens",), "OpenTelemetry's conventions"),
    CountPlace("spans", "cache_write", ("gen_ai.usage.cache_write.input_tokens",), "this library's own export"),
    CountPlace("spans", "cache_write", ("gen_ai.usage.cache_creation_input_tokens",), "OpenLLMetry before 0.5, source"),
    CountPlace("spans", "cache_write", ("gen_ai.usage.cache_write_input_tokens",), "Strands, source"),
    CountPlace("spans", "cache_write", ("llm.token_count.prompt_details.cache_write",), "OpenInference 0.1.42, source"),
    CountPlace("spans", "reasoning", ("gen_ai.usage.reasoning.output_tokens",), "OpenTelemetry's conventions"),
    CountPlace("spans", "reasoning", ("gen_ai.usage.reasoning_tokens",), "OpenLLMetry 0.5.1, source"),
    CountPlace("spans", "reasoning", ("llm.usage.reasoning_tokens",), "OpenLLMetry 0.5.1, source"),
    CountPlace("spans", "reasoning", ("gen_ai.usage.details.reasoning_tokens",), "Pydantic AI, source"),
    CountPlace("spans", "reasoning", ("llm.token_count.completion_details.reasoning",), "OpenInference 0.1.42, source"),
    CountPlace("atif", "input", ("prompt_tokens",), "ATIF 1.7"),
    CountPlace("atif", "output", ("completion_tokens",), "ATIF 1.7"),
    CountPlace("atif", "cache_read", ("cached_tokens",), "ATIF 1.7"),
    CountPlace("atif", "cache_write", ("extra", "cache_write_tokens"), "this library's own export"),
    CountPlace("atif", "reasoning", ("extra", "reasoning_tokens"), "this library's own export"),
    CountPlace("codex", "input", ("input_tokens",), "Codex 0.146, recorded"),
    CountPlace("codex", "output", ("output_tokens",), "Codex 0.146, recorded"),
    CountPlace("codex", "cache_read", ("cached_input_tokens",), "Codex 0.146, recorded"),
    CountPlace("codex", "cache_read", ("input_tokens_details", "cached_tokens"), "Codex, older"),
    CountPlace("codex", "cache_write", ("cache_write_input_tokens",), "Codex 0.146, recorded"),
    CountPlace("codex", "reasoning", ("reasoning_output_tokens",), "Codex 0.146, recorded"),
    CountPlace("inspect", "input", ("input_tokens",), "inspect_ai, source"),
    CountPlace("inspect", "output", ("output_tokens",), "inspect_ai, source"),
    CountPlace("inspect", "total", ("total_tokens",), "inspect_ai, source"),
    CountPlace("inspect", "cache_read", ("input_tokens_cache_read",), "inspect_ai, source", beside=True),
    CountPlace("inspect", "cache_write", ("input_tokens_cache_write",), "inspect_ai, source", beside=True),
    CountPlace("inspect", "reasoning", ("reasoning_tokens",), "inspect_ai, source"),
    CountPlace("verifiers", "input", ("prompt_tokens",), "verifiers, source"),
    CountPlace("verifiers", "output", ("completion_tokens",), "verifiers, source"),
    CountPlace("verifiers", "cache_read", ("cached_input_tokens",), "verifiers, source", beside=True),
    CountPlace("verifiers", "reasoning", ("reasoning_tokens",), "verifiers, source"),
    CountPlace("gemini_cli", "input", ("input",), "Gemini CLI, recorded"),
    CountPlace("gemini_cli", "tools", ("tool",), "Gemini CLI, source", beside=True),
    CountPlace("gemini_cli", "output", ("output",), "Gemini CLI, recorded"),
    CountPlace("gemini_cli", "cache_read", ("cached",), "Gemini CLI, recorded"),
    CountPlace("gemini_cli", "reasoning", ("thoughts",), "Gemini CLI, recorded", beside=True),
    CountPlace("kimi_code", "input", ("inputOther",), "Kimi Code, recorded"),
    CountPlace("kimi_code", "output", ("output",), "Kimi Code, recorded"),
    CountPlace("kimi_code", "cache_read", ("inputCacheRead",), "Kimi Code, recorded", beside=True),
    CountPlace("kimi_code", "cache_write", ("inputCacheCreation",), "Kimi Code, recorded", beside=True),
    # Google's names, with the thoughts among the candidates, as the chat protocol counts.
    CountPlace("qwen_code", "input", ("promptTokenCount",), "Qwen Code, recorded"),
    CountPlace("qwen_code", "output", ("candidatesTokenCount",), "Qwen Code, recorded"),
    CountPlace("qwen_code", "cache_read", ("cachedContentTokenCount",), "Qwen Code, recorded"),
    CountPlace("qwen_code", "reasoning", ("thoughtsTokenCount",), "Qwen Code, recorded"),
)


class UsagePlace(Struct, frozen=True):
    """A place of a whole usage beside OpenAI's own, which is the field ``usage`` of a body."""

    path: Path
    """From the body, or from a choice where ``of_choice`` is set."""
    seen: str
    """Who puts it there, and the evidence."""
    of_choice: bool = False


USAGES: Final = (
    UsagePlace(("x_groq", "usage"), "Groq, streamed: SDK 1.7 types"),
    UsagePlace(("usage",), "Moonshot, streamed: @ai-sdk/moonshotai 2.0.61, source", of_choice=True),
)

SPAN_COSTS: Final = (
    "llm.cost.total",  # OpenInference 0.1.42, source.
    "gen_ai.usage.cost",  # Langfuse and others.
    "operation.cost",  # Pydantic AI 2.68, source.
)
"""Attributes of spans that are the cost of a call in US dollars."""

COST_HEADER: Final = "x-litellm-response-cost"
"""LiteLLM's proxy 1.110, source: US dollars."""

_SIDES: Final = frozenset({"input", "output"})
_PARTS: Final = frozenset({"cache_read", "cache_write", "reasoning"})
_SIDES_AND_PARTS: Final = _SIDES | _PARTS
_ALL_BUT_TOOLS: Final = _SIDES_AND_PARTS | {"total"}
_LIMIT: Final = 2**63
_PLACES: Final = {shape: tuple(row for row in COUNTS if row.shape == shape) for shape in get_args(Shape)}


def _tree(rows: Iterable[CountPlace]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in rows:
        inside = found
        for name in row.path[:-1]:
            inside = inside.setdefault(name, {})
        inside[row.path[-1]] = row
    return found


_TREES: Final = {shape: _tree(rows) for shape, rows in _PLACES.items()}
"""By shape: a place, or what is inside, by name."""
_TOTALS: Final = {
    shape: {row.path[0]: row.count for row in rows if row.count in (*_SIDES, "total") and len(row.path) == 1}
    for shape, rows in _PLACES.items()
}
"""By shape: names of the counts of prompt, completion and both."""


def is_count(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a whole number of tokens. Gateways that compute counts send 5 as 5.0."""
    return type(value) in (int, float) and 0 <= value < _LIMIT and value == value // 1


def count_at(values: Any, path: Sequence[str]) -> int | None:
    """The count at a path of an object; None where it is null, missing or no whole number."""
    value = value_at(values, path)
    return int(value) if is_count(value) else None


def value_at(values: Any, path: Sequence[str]) -> Any:
    """The value at a path of an object; None where there is none."""
    for name in path:
        values = values.get(name) if isinstance(values, (dict, Mapping)) else None
    return values


def counts_from(shape: Shape, get: Callable[[Path], int | None]) -> tuple[dict[str, Any], list[Path]]:
    """The fields of a ``Usage`` but ``extra``, by the places of a shape; and the paths of counts that they say in full.

    Where several places have one, the largest holds: gateways fill fields that they do not know with zeros.
    ``get``: the count at a path; None where there is none.
    """
    return _found([(row, value) for row in _PLACES[shape] if (value := get(row.path)) is not None])


def counts_in(shape: Shape, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """As ``counts_from``, of an object of counts. Its few names are looked up, not the many of the table."""
    read: list[tuple[CountPlace, int]] = []
    _read_into(read, values, _TREES[shape])
    return _found(read)


def totals_in(shape: Shape, values: Mapping[str, Any]) -> dict[str, int] | None:
    """As ``counts_in``, where prompt and completion are all that is counted, once each; None of any other object."""
    own: dict[str, int] = {}
    names = _TOTALS[shape]
    for name, value in values.items():
        count = names.get(name)
        if count is None or count in own or type(value) is not int or not 0 <= value < _LIMIT:
            return None
        own[count] = value
    total = own.pop("total", None)
    return own if len(own) == 2 and total in (None, own["input"] + own["output"]) else None


def _read_into(read: list[tuple[CountPlace, int]], values: Mapping[str, Any], places: Mapping[str, Any]) -> None:
    for name, value in values.items():
        place = places.get(name)
        if type(place) is CountPlace:
            if type(value) is int and 0 <= value < _LIMIT:
                read.append((place, value))
            elif is_count(value):
                read.append((place, int(value)))
        elif place is not None and isinstance(value, (dict, Mapping)):
            _read_into(read, value, place)


def _found(read: Sequence[tuple[CountPlace, int]]) -> tuple[dict[str, Any], list[Path]]:
    own: dict[str, int] = {row.count: value for row, value in read}
    if len(own) < len(read):
        for row, value in read:
            own[row.count] = max(value, own[row.count])
    get = own.get
    prompt, sampled = get("input"), get("output")
    if beside := {row.count for row, _ in read if row.beside and own[row.count]}:
        if get("total") == get("input", 0) + get("output", 0) and _cached(own) <= get("input", 0):
            # Of one name in two ways: inspect_ai before 2026-02 had what was read from a cache in the input of some
            # providers.
            beside -= {"cache_read", "cache_write"}
        for name in beside:
            if name == "reasoning":
                sampled = None if sampled is None else sampled + own[name]
            else:
                prompt = None if prompt is None else prompt + own[name]
    sent = (prompt, sampled)
    # Mostly there is nothing to put them right by.
    now = sent if own.keys() <= _SIDES else _settled(*sent, own)
    found = {
        "input": now[0],
        "output": now[1],
        "cache_read": get("cache_read"),
        "cache_write": get("cache_write"),
        "reasoning": get("reasoning"),
    }
    # What was put right is kept as it was sent.
    said = _PARTS
    if sent == now or (sent[0] == now[0] and sent[1] is None):
        said = _ALL_BUT_TOOLS if get("total") == (now[0] or 0) + (now[1] or 0) else _SIDES_AND_PARTS
    return found, [row.path for row, value in read if not value or (row.count in said and value == own[row.count])]


def _cached(own: Mapping[str, int]) -> int:
    return own.get("cache_read", 0) + own.get("cache_write", 0)


def _settled(read: int | None, written: int | None, own: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Tokens of the prompt and sampled tokens, with those that a provider counts beside them.

    xAI, and Gemini behind layers of OpenAI's shape, count reasoning in the total alone; DeepInfra does not even there,
    but then it is more than what is said to be sampled. xAI's cached tokens can be more than its prompt.
    """
    total, reasoning = own.get("total"), own.get("reasoning", 0)
    cached = _cached(own)
    if read is None:
        return read, written
    if written is None:
        # Zeros are left out of Google's JSON: of an answer that was all thought, the total has the rest.
        return read, None if total is None or total < read + reasoning else total - read
    if cached > read or (total is not None and 0 < cached == total - read - written != reasoning):
        read += cached
    more = 0 if total is None else total - read - written
    if more > 0:
        return read, written + more
    return read, written + reasoning if reasoning > written else written


def amount_of(value: Any, unit: float = 1.0) -> float | None:
    """A cost: a finite number of 0 or more, in units of ``unit``; None for anything else."""
    # `True` is an int, and would be a cost of 1.
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        return None
    return float(value) * unit


def amount_in(text: str) -> float | None:
    """A cost from a header; None where the text is no such number."""
    try:
        return amount_of(float(text))
    except ValueError:
        return None
