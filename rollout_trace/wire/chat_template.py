"""Loads trained tokenizers, and renders their chat templates as engines do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol


class Render(Protocol):
    """Writes a conversation as text: its messages and tools, and the beginning of the answer where that is added."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Any, is_open: bool, **settings: Any) -> str: ...


@lru_cache(maxsize=8)
def tokenizer_at(source: Any) -> Callable[[Sequence[Mapping[str, Any]], Any, bool, Mapping[str, Any]], list[int]]:
    """Returns what gives the ids of messages: from messages, tools, whether an answer begins, and template arguments.

    Raises:
        ImportError: a package is missing.
        ValueError: the source is no tokenizer, or has no chat template.
    """
    tokenizer, render, config = load(source)
    template = config.get("chat_template")
    if render is None and not isinstance(template, str):
        raise ValueError(f"{source} has no chat template: expected chat_template.jinja, or one in the configuration")
    write = render or jinja(str(template), config)

    def ids(messages: Sequence[Mapping[str, Any]], tools: Any, is_open: bool, settings: Mapping[str, Any]) -> list[int]:
        text = write([for_template(one) for one in messages], tools, is_open, **settings)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return ids


def load(source: Any) -> tuple[Any, Render | None, Mapping[str, Any]]:
    """The tokenizer of `tokenizers`, its template if it has one of its own, and its configuration."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"{path} holds no tokenizer. Give a folder with tokenizer.json, or that file")
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "a tokenizer from a file needs the package `tokenizers`: pip install tokenizers"
            ) from error
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        return tokenizer, None, _config(file.parent)
    inner = getattr(source, "backend_tokenizer", None)
    if inner is not None:

        def render(messages: Sequence[Mapping[str, Any]], tools: Any, is_open: bool, **settings: Any) -> str:
            text = source.apply_chat_template(
                [dict(one) for one in messages], tools=tools, add_generation_prompt=is_open, tokenize=False, **settings
            )
            return str(text)

        own = render if getattr(source, "chat_template", None) else None
        return inner, own, {"eos_token": source.eos_token}
    if hasattr(source, "id_to_token") and hasattr(source, "get_added_tokens_decoder"):
        return source, None, {}
    raise ValueError(f"{source!r} is not a tokenizer. Give a tokenizers.Tokenizer, one of transformers, or a folder")


def _config(folder: Path) -> Mapping[str, Any]:
    """`tokenizer_config.json` of a folder, with its `chat_template.jinja`."""
    file, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found | ({"chat_template": template.read_text("utf-8")} if template.is_file() else {})


def name_of(token: Any) -> str | None:
    """A token of a configuration: its text, or an object with it."""
    return token.get("content") if isinstance(token, dict) else token


def jinja(template: str, config: Mapping[str, Any]) -> Render:
    """A template as transformers renders it."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError("a chat template needs the package `jinja2`: pip install jinja2") from error

    def fail(message: str) -> None:
        raise ValueError(f"the chat template refuses the messages: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    compiled = environment.from_string(template)
    tokens = {name: name_of(config.get(name)) or "" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def render(messages: Sequence[Mapping[str, Any]], tools: Any, is_open: bool, **settings: Any) -> str:
        given = {**tokens, "messages": messages, "tools": tools, "add_generation_prompt": is_open, **settings}
        try:
            return compiled.render(given)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot render the messages: {error}") from error

    return render


def for_template(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as engines give it to templates: texts for parts, arguments as objects, reasoning under both names."""
    made = dict(message)
    content = made.get("content")
    if isinstance(content, list):
        made["content"] = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    reasoning = made.get("reasoning") or made.get("reasoning_content")
    if reasoning:
        made["reasoning"] = made["reasoning_content"] = reasoning
    if made.get("tool_calls"):
        made["tool_calls"] = [_call_for_template(call) for call in made["tool_calls"]]
    return made


def _call_for_template(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = dict(call["function"])
    try:
        value = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        value = None
    return {
        **call,
        "type": "function",
        "function": {**function, **({"arguments": value} if isinstance(value, dict) else {})},
    }
