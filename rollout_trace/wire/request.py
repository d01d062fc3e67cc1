"""Request bodies: model, messages, tools and sampling parameters; and which of several prompts a choice answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import urandom
from typing import Any

from msgspec import Raw, Struct, ValidationError, json

from rollout_trace import credentials
from rollout_trace.data.lists import ListSpan, ListStore
from rollout_trace.data.tokens import PromptIds, TokenStore
from rollout_trace.wire.facts import RequestFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, loads
from rollout_trace.wire.protocols import RequestLayout, record_of
from rollout_trace.wire.reading import text_of

_FIELDS = json.Decoder(dict[str, Raw])
_ITEMS = json.Decoder(list[Raw])
_decode = json.Decoder().decode
_ONE_PROMPT = re.compile(rb'"|\[\s*\d')
"""Start of a prompt that is not a list of prompts: a text, or its token ids."""
_PROMPTS_OF_IDS = re.compile(rb"\[\s*\[")
_FLAGS = {b"true": True, b"null": None}
_LIST = ord("[")
_KNOWN = b"-%d" % int.from_bytes(urandom(8), "big")
"""The number that stands for items that are known: one that nobody can send."""


class _Transfer(Struct, forbid_unknown_fields=True):
    prompt_token_ids: list[int]


_TRANSFER = json.Decoder(_Transfer)
_IDS = json.Decoder(list[int])
_TRANSPORT = frozenset({"stream", "stream_options"})
ID_FIELDS = frozenset({"input_ids", "token_ids"})
"""Parameters that are the ids of a prompt."""


def read(
    protocol: str, body: bytes | None, messages: ListStore, tools: ListStore, tokens: TokenStore | None = None
) -> RequestFacts:
    """The facts of a request body. A body that is missing or no JSON object has none.

    ``stream`` and ``stream_options`` are left out of ``sampling``: they change the transport, not the completion.

    Args:
        tokens: with it long prompts that were sent as ids become ``PromptIds``, of which only those are read that are
            not in it.
    """
    if not body:
        return RequestFacts()
    layout = record_of(protocol).request
    # As bytes: what every request of a conversation repeats stays one stored value.
    clean = credentials.cut_bytes(body)
    try:
        facts = _read_shared(clean, layout, messages, tools, tokens)
    except DECODE_ERRORS:
        facts = _read_plain(clean, layout)
    facts.is_cut = clean is not body
    return facts


def _read_shared(
    body: bytes, layout: RequestLayout, messages: ListStore, tools: ListStore, tokens: TokenStore | None
) -> RequestFacts:
    # Messages stay bytes here: the store decodes only those that no earlier request brought.
    values = _fields(body, layout.messages, messages)
    _rename(values, layout)
    model, ids = values.pop("model", None), _long_ids(values, tokens)
    sent_ids = _sent_ids(values, ids, tokens)
    return RequestFacts(
        model=None if model is None else text_of(_decode(model)),
        messages=_prompt(values, layout, messages, tokens),
        tools=_listed(values, "tools", tools),
        sampling=_flat(
            {
                name: ids[name] if name in ids else _decode(value)
                for name, value in values.items()
                if name not in _TRANSPORT
            },
            layout,
        ),
        stream=_stream(_FLAGS.get(bytes(values["stream"]), False) if "stream" in values else None, layout),
        prompt_token_ids=sent_ids,
    )


def _fields(body: bytes, name: str, store: ListStore) -> dict[str, Any]:
    """The fields of a body. Of the list of this name those items are not looked through that an earlier request had."""
    values: dict[str, Any]
    start = body.find(f'"{name}":['.encode())
    at = start + len(name) + 3
    end = store.known(body, at) if start >= 0 else at
    if end > at:
        # A number stands for them: it is found again where the list is a field of the body, not of what is inside one.
        values = _FIELDS.decode(b"".join((body[: at + 1], _KNOWN, body[end:])))
        rest = bytes(values.get(name, NULL))
        if rest.startswith(_KNOWN, 1):
            return {**values, name: body[at : end + len(rest) - len(_KNOWN) - 1]}
    values = _FIELDS.decode(body)
    return values


def _long_ids(values: dict[str, Raw], tokens: TokenStore | None) -> dict[str, PromptIds]:
    """The fields that are long lists of a prompt's ids."""
    if tokens is None or ID_FIELDS.isdisjoint(values):
        return {}
    found = {name: _ids_in(bytes(values[name]), tokens) for name in ID_FIELDS if name in values}
    return {name: ids for name, ids in found.items() if ids is not None}


def _ids_in(text: bytes, tokens: TokenStore | None, begin: bytes = b"[", end: bytes = b"]") -> PromptIds | None:
    """The ids of a long list that stands between ``begin`` and ``end``; None of anything else."""
    if tokens is None or not (text.startswith(begin) and text.endswith(end)):
        return None
    return tokens.read(text, len(begin), len(text) - len(end))


def _sent_ids(
    values: dict[str, Raw], long: Mapping[str, PromptIds], tokens: TokenStore | None
) -> list[int] | PromptIds | None:
    """The ids of a prompt that stand beside its messages.

    vLLM's are no longer in the fields: they would be stored once more with each turn. Of SGLang's ``sampling`` they are
    left out where the step has them.
    """
    try:
        if "kv_transfer_params" in values:
            raw = values["kv_transfer_params"]
            ids = _ids_in(bytes(raw), tokens, b'{"prompt_token_ids":[', b"]}")
            found = _TRANSFER.decode(raw).prompt_token_ids if ids is None else ids
            del values["kv_transfer_params"]
            return found
        if "input_ids" in values and "messages" in values:
            return long["input_ids"] if "input_ids" in long else _IDS.decode(values["input_ids"])
    except ValidationError:
        pass
    return None


def _stream(value: Any, layout: RequestLayout) -> bool | None:
    """Whether a stream is asked for, by the value of the field. Only ``true`` does, or none where that is the usual."""
    if layout.is_contents:
        return None
    return layout.streams_by_default if value is None else value is True


def _rename(values: dict[str, Any], layout: RequestLayout) -> None:
    for other, usual in layout.aliases:
        if other in values and usual not in values:
            values[usual] = values.pop(other)


def _flat(sampling: dict[str, Any], layout: RequestLayout) -> dict[str, Any]:
    """The sampling parameters, with those that the request has in an object of their own."""
    settings = None if layout.settings is None else sampling.get(layout.settings)
    if not isinstance(settings, dict):
        return sampling
    return {**{name: value for name, value in sampling.items() if name != layout.settings}, **settings}


def _prompt(values: dict[str, Raw], layout: RequestLayout, store: ListStore, tokens: TokenStore | None) -> Any:
    """Pops the messages, equal ones stored once. Prompts of token ids are plain lists: the token store keeps those."""
    before = _system(values, layout)
    raw = values.get(layout.messages, NULL)
    if not before and _PROMPTS_OF_IDS.match(raw):
        return [_one_prompt(item, tokens) for item in _ITEMS.decode(values.pop(layout.messages))]
    is_one = layout.text and _ONE_PROMPT.match(raw)
    found = None if is_one else _listed(values, layout.messages, store, before)
    if found is None and (is_one or (layout.is_contents and raw != NULL)):
        before.append(values.pop(layout.messages))
    if found is None and len(before) == 1 and memoryview(before[0])[0] == _LIST:
        return [_one_prompt(before[0], tokens)]
    return store.add(before) if found is None and before else found


def _one_prompt(raw: Raw, tokens: TokenStore | None) -> Any:
    ids = _ids_in(bytes(raw), tokens)
    return _decode(raw) if ids is None else ids


def _system(values: dict[str, Raw], layout: RequestLayout) -> list[Raw]:
    """Pops the system prompt, as the first message; none where there is none."""
    if layout.system is None or values.get(layout.system, NULL) == NULL:
        return []
    # Built as bytes, like the messages: a system prompt that requests repeat is stored once, too.
    raw = bytes(values.pop(layout.system))
    if layout.is_contents:
        return [Raw(json.encode(_system_content(json.decode(raw))))]
    return [Raw(b'{"role":"system","content":' + raw + b"}")]


def _system_content(value: Any) -> dict[str, Any]:
    """Google's system instruction as a message: a content, a list of parts, one part, or a text."""
    if isinstance(value, dict) and "parts" in value:
        return {**value, "role": "system"}
    parts = value if isinstance(value, list) else [{"text": value} if isinstance(value, str) else value]
    return {"role": "system", "parts": parts}


def _listed(values: dict[str, Raw], name: str, store: ListStore, before: list[Raw] | None = None) -> ListSpan | None:
    """Pops a list field, and stores it behind other values. None, and nothing popped, where it is none."""
    raw = values.get(name)
    if raw is None:
        return None
    try:
        found = store.add_text(bytes(raw), before)
    except ValidationError:
        return None
    del values[name]
    return found


def _read_plain(body: bytes, layout: RequestLayout) -> RequestFacts:
    """The facts of a body that the strict reader refuses: NaN, lone surrogates, bytes that are no UTF-8."""
    try:
        values = loads(body)
    except ValueError:
        return RequestFacts()
    if not isinstance(values, dict):
        return RequestFacts()
    _rename(values, layout)
    messages = [values.pop(layout.messages)] if _is_one(values, layout) else _plain_list(values, layout.messages)
    if layout.system is not None and values.get(layout.system) is not None:
        system = values.pop(layout.system)
        first = _system_content(system) if layout.is_contents else {"role": "system", "content": system}
        messages = [first, *(messages or ())]
    return RequestFacts(
        model=text_of(values.pop("model", None)),
        messages=messages,
        tools=_plain_list(values, "tools"),
        sampling=_flat({name: value for name, value in values.items() if name not in _TRANSPORT}, layout),
        stream=_stream(values.get("stream"), layout),
    )


def _is_one(values: dict[str, Any], layout: RequestLayout) -> bool:
    """Whether the field of the messages holds one prompt, or one content, and not a list of them."""
    prompt = values.get(layout.messages)
    if layout.is_contents:
        return isinstance(prompt, (str, dict))
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int))
    return layout.text and bool(is_one)


def _plain_list(values: dict[str, Any], name: str) -> Any:
    return values.pop(name) if isinstance(values.get(name), list) else None


class Prompts:
    """The prompts of one request. Choices are numbered prompt by prompt, ``n`` for each."""

    def __init__(self, prompts: Any, n: Any) -> None:
        """``prompts``: one text, one list of ids, or a list of either."""
        single = isinstance(prompts, str) or ids_of(prompts) is not None
        self.all: list[Any] = [prompts] if single else prompts if isinstance(prompts, list) else []
        self._n = n if type(n) is int and n > 0 else 1

    def position(self, index: int, choices: int, *, whole: bool) -> int | None:
        """Position of the prompt that a choice answers; None where it is not certain.

        ``choices``: number of choices so far; ``whole``: no more will come. Some servers ignore ``n``.
        """
        if len(self.all) < 2:
            return 0 if self.all or choices == 1 else None
        per_prompt = self._n
        if whole and choices != per_prompt * len(self.all):
            if choices != len(self.all):
                return None
            # As many choices as prompts, although more were requested: the server ignored `n`.
            per_prompt = 1
        position = index // per_prompt
        return position if 0 <= position < len(self.all) else None

    def at(self, index: int, choices: int, *, whole: bool) -> Any:
        """The prompt that a choice answers; None where it is not certain, or there are none."""
        position = self.position(index, choices, whole=whole)
        return None if position is None or not self.all else self.all[position]

    def sent_ids(self, prompt: Any, counted: int | None) -> Any:
        """The ids of a prompt that was sent as ids; None where the engine's count (``counted``) differs."""
        ids = ids_of(prompt)
        if ids is None or counted is None:
            return ids
        lengths = [len(ids_of(one) or ()) for one in self.all]
        # With several prompts engines count all of them or the first alone.
        return ids if counted in (sum(lengths), lengths[0]) else None


def messages_of(request: RequestFacts) -> list[Any]:
    """The messages of a request as a plain list."""
    messages = request.messages
    return messages.get() if isinstance(messages, ListSpan) else messages or []


def ids_of(prompt: Any) -> Any:
    """The prompt itself where it is a list of token ids, or ``PromptIds``; else None."""
    if isinstance(prompt, PromptIds):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(value) is int for value in prompt):
        return prompt
    return None
