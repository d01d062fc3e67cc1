"""A small, reversible byte-level tokenizer with a ChatML template; needs no files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, overload

SPECIAL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|endoftext|>",
)
_FIRST_SPECIAL = 256

PartKind = Literal["template", "content", "reasoning", "call_begin", "call_name", "call_arguments", "call_end"]


class AnyTokenizer(Protocol):
    """The methods that a scripted server needs of a tokenizer: `ByteTokenizer`, `RealTokenizer`, or your own."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_id(self) -> int: ...
    def is_special(self, token_id: int) -> bool: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, *, special: bool = False) -> list[int]: ...
    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str: ...
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]: ...
    def assistant_parts(self, message: Mapping[str, Any]) -> list[Part]: ...


class Part(NamedTuple):
    """Consecutive ids of an assistant message, and the field of the message that they encode."""

    kind: PartKind
    ids: list[int]
    call: int = 0  # index of the tool call, for the kinds that begin with `call`
    texts: Sequence[str | None] | None = None  # what each id adds to the field (None: nothing); default: its own text


class ByteTokenizer:
    """A byte-level tokenizer: ids 0 to 255 are the bytes of UTF-8 text, the next are special tokens, then `words`.

    `words` are strings with their own ids. `encode` prefers them, the longest first, so that a text has several
    encodings, as with a trained tokenizer.

    If an assistant message from a `ScriptedServer` is sent back unchanged, it renders to exactly the sampled ids.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.special_ids = {token: _FIRST_SPECIAL + i for i, token in enumerate(SPECIAL_TOKENS)}
        """Ids of the special tokens, by their text."""
        first_word = _FIRST_SPECIAL + len(SPECIAL_TOKENS)
        self._words = {word.encode(): first_word + i for i, word in enumerate(dict.fromkeys(words))}
        self._bytes = [bytes([i]) for i in range(256)] + [token.encode() for token in SPECIAL_TOKENS] + [*self._words]
        self._word_pattern = re.compile(b"|".join(map(re.escape, sorted(self._words, key=len, reverse=True))))
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")

    @property
    def vocab_size(self) -> int:
        """Number of ids in the vocabulary."""
        return len(self._bytes)

    @property
    def eos_token_id(self) -> int:
        """Id of `<|im_end|>`, which ends a message."""
        return self.special_ids["<|im_end|>"]

    def is_special(self, token_id: int) -> bool:
        """Returns whether an id is a special token."""
        return _FIRST_SPECIAL <= token_id < _FIRST_SPECIAL + len(SPECIAL_TOKENS)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one id. Raises ValueError for an id outside the vocabulary."""
        if not 0 <= token_id < len(self._bytes):
            raise ValueError(f"token id {token_id} is not in the vocabulary: use 0 to {len(self._bytes) - 1}")
        return self._bytes[token_id]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Returns the ids of a text. The text of a special token becomes its id only if `special` is true."""
        if not special:
            return self._encode_bytes(text.encode("utf-8", "replace"))
        ids: list[int] = []
        for piece in self._special_pattern.split(text):
            token_id = self.special_ids.get(piece)
            ids += self.encode(piece) if token_id is None else [token_id]
        return ids

    def _encode_bytes(self, data: bytes) -> list[int]:
        if not self._words:
            return list(data)
        ids: list[int] = []
        at = 0
        for match in self._word_pattern.finditer(data):
            ids += [*data[at : match.start()], self._words[match.group()]]
            at = match.end()
        return [*ids, *data[at:]]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Returns the text of ids; bytes that are not UTF-8 become U+FFFD."""
        kept = (i for i in ids if not (skip_special_tokens and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        tokenize: Literal[True] = True,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        tokenize: Literal[False],
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        tokenize: bool = True,
    ) -> list[int] | str:
        """Renders a conversation in ChatML as ids, or text if not `tokenize`; ends with the assistant's header by
        default."""
        ids = self._render_tools(tools) if tools else []
        for message in messages:
            ids += self._render_message(message)
        if add_generation_prompt:
            ids += self._header("assistant")
        return ids if tokenize else self.decode(ids)

    def _header(self, role: str) -> list[int]:
        return [self.special_ids["<|im_start|>"], *self.encode(f"{role}\n")]

    def _footer(self) -> list[int]:
        return [self.eos_token_id, *self.encode("\n")]

    def _render_tools(self, tools: Sequence[Mapping[str, Any]]) -> list[int]:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return [*self._header("system"), *self.encode(f"# Tools\n{lines}"), *self._footer()]

    def _render_message(self, message: Mapping[str, Any]) -> list[int]:
        role = str(message.get("role", "user"))
        if role == "assistant":
            body = [token for part in self.assistant_parts(message) for token in part.ids]
        else:
            body = self.encode(_content_text(message.get("content")))
        return [*self._header(role), *body, *self._footer()]

    def assistant_parts(self, message: Mapping[str, Any]) -> list[Part]:
        """Returns the ids of an assistant message without its end token, split by the field that each part encodes."""
        parts: list[Part] = []
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning:
            parts.append(Part("template", [self.special_ids["<think>"], *self.encode("\n")]))
            parts.append(Part("reasoning", self.encode(str(reasoning))))
            end = [*self.encode("\n"), self.special_ids["</think>"], *self.encode("\n\n")]
            parts.append(Part("template", end))
        content = _content_text(message.get("content"))
        if content:
            parts.append(Part("content", self.encode(content)))
        for i, call in enumerate(message.get("tool_calls") or ()):
            parts += self._call_parts(i, call["function"])
        return parts

    def _call_parts(self, index: int, function: Mapping[str, Any]) -> list[Part]:
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""  # SDKs that join a stream give None where no piece of the arguments came
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(function["name"], ensure_ascii=False)
        separator = "\n" if index else ""
        begin = [*self.encode(separator), self.special_ids["<tool_call>"], *self.encode('\n{"name": ')]
        return [
            Part("call_begin", begin, index),
            Part("call_name", self.encode(name), index),
            Part("template", self.encode(', "arguments": '), index),
            Part("call_arguments", self.encode(arguments), index),
            Part("call_end", [*self.encode("}\n"), self.special_ids["</tool_call>"]], index),
        ]


def _content_text(content: object) -> str:
    """The text of a message's content: a string, a list of parts, or nothing. Other parts are written as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    texts = ((part, part.get("text") if isinstance(part, dict) else None) for part in content)
    return "".join(text if isinstance(text, str) else json.dumps(part, ensure_ascii=False) for part, text in texts)
