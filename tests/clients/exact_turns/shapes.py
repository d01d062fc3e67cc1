"""Second turns in every shape that a call can have, and what an agent reads of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from rollout_trace.testing import Fault, Reply
from tests.clients.either import done, each, entered

from .agents import TOOLS, says

Object: TypeAlias = dict[str, Any]
Form = Literal["whole", "streamed", "raw", "raw streamed", "bytes", "lines", "helper", "parsed", "left"]


class Sum(BaseModel):
    a: int


@dataclass(frozen=True)
class Shape:
    """One second turn."""

    form: Form = "whole"
    both: Object = field(default_factory=dict)
    """Arguments of both turns."""
    second: Object = field(default_factory=dict)
    """Of the second alone."""
    new: Sequence[Object] = ({"role": "user", "content": "go on"},)
    """The messages that it adds."""
    reason: str | None = ""
    """Why it goes out as text whatever the server is; None: it is no turn. Empty: the server is why."""

    @property
    def is_refused(self) -> bool:
        """Whether the request is refused for itself: that it was not for its ids is not known before they are left
        out."""
        return str(self.new[-1:]).endswith(("fail 400'},)", "fail 403'},)", "fail 422'},)"))


_FORCED: Object = {"tools": TOOLS, "tool_choice": "required"}
_NAMED: Object = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "tool"}}}
_SCHEMA: Object = {"type": "json_schema", "json_schema": {"name": "sum", "schema": Sum.model_json_schema()}}
_IMAGE: Object = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def _extra(**fields: Any) -> Object:
    return {"extra_body": fields}


def _text(text: str) -> Object:
    return {"type": "text", "text": text}


def _said(text: str) -> tuple[Object, ...]:
    return ({"role": "user", "content": text},)


_ARGUMENTS: dict[str, Shape] = {
    "plain": Shape(),
    "two": Shape(both={"n": 2}),
    "tools": Shape(both={"tools": TOOLS}),
    "tools none": Shape(both={"tools": TOOLS, "tool_choice": "none"}),
    "required": Shape(both=_FORCED),
    "named": Shape(both=_NAMED),
    "not parallel": Shape(both={**_FORCED, "parallel_tool_calls": False}),
    "required two": Shape(both={**_FORCED, "n": 2}),
    "logprobs": Shape(second={"logprobs": True}),
    "alternatives": Shape(second={"logprobs": True, "top_logprobs": 3}),
    "stop": Shape(second={"stop": ["wor"]}),
    "short": Shape(second={"max_tokens": 3}),
    "one token": Shape(second={"max_completion_tokens": 1}),
    "json object": Shape(both={"response_format": {"type": "json_object"}}),
    "schema": Shape(both={"response_format": _SCHEMA}),
    "sampling": Shape(second={"temperature": 0.3, "top_p": 0.9, "seed": 4, "presence_penalty": 0.5}),
    "template": Shape(both=_extra(chat_template_kwargs={"enable_thinking": False})),
    "ids": Shape(second=_extra(return_token_ids=True)),
    "no ids": Shape(second=_extra(return_token_ids=False)),
    "headers": Shape(second={"extra_headers": {"x-of-the-agent": "1"}, "timeout": 30}),
    "query": Shape(second={"extra_query": {"tenant": "a"}}),
    "metadata": Shape(second={"user": "u", "metadata": {"a": "b"}, "store": False}),
    "no text": Shape(new=({"role": "user", "content": ""},)),
    "parts": Shape(
        new=({"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "on"}]},)
    ),
    "unicode": Shape(new=_said("Größe: 🙂 \u202e\x00")),
    "several": Shape(new=(*_said("one"), {"role": "system", "content": "Be brief."}, *_said("two"))),
    "echo": Shape(second=_extra(echo=True), reason="echo"),
    "effort": Shape(second={"reasoning_effort": "low"}, reason="field"),
    "truncated": Shape(second=_extra(truncate_prompt_tokens=20), reason="field"),
    "media": Shape(new=({"role": "user", "content": [_text("see"), _IMAGE]},), reason="media"),
    "own field": Shape(second=_extra(kv_transfer_params={"do_remote_decode": False}), reason="field_in_use"),
    "nothing new": Shape(new=(), reason="continued"),
    "other tools": Shape(second={"tools": TOOLS}, reason="settings_changed"),
    "other format": Shape(second={"response_format": {"type": "json_object"}}, reason="settings_changed"),
    "fails": Shape(new=_said("fail 500")),
    "busy": Shape(new=_said("fail 429")),
    "not allowed": Shape(new=_said("fail 403")),
    "unknown": Shape(new=_said("fail 404")),
    "wrong": Shape(new=_said("fail 422")),
    "no json": Shape(new=_said("no json")),
    "breaks off": Shape(new=_said("cut")),
}
_STREAMED: dict[str, Shape] = {
    "usage": Shape(second={"stream_options": {"include_usage": True}}),
    "running usage": Shape(second={"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "no usage": Shape(second={"stream_options": {"include_usage": False}}),
    "error event": Shape(new=_said("error event")),
}
_PARSED = Shape(both={"response_format": Sum})
_SOME = ("plain", "two", "required", "logprobs", "stop", "fails", "wrong", "no json", "breaks off", "echo")


def _each(form: Form, shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {f"{name}, {form}": replace(one, form=form) for name, one in shapes.items()}


def _only(names: Sequence[str]) -> dict[str, Shape]:
    return {name: _ARGUMENTS[name] for name in names}


_CHAT_OTHERWISE: dict[str, Shape] = {
    **_each("raw", _only(_SOME)),
    **_each("raw streamed", _only(_SOME)),
    **_each("bytes", _only(_SOME)),
    **_each("lines", _only(_SOME)),
    **_each("helper", _only(("plain", "tools", "schema", "fails", "breaks off"))),
    **_each("parsed", {"plain": _PARSED, "fails": replace(_PARSED, new=_said("fail 500"))}),
    **_each("left", _only(("plain", "two"))),
}

_TOOL: Object = {"type": "function", **TOOLS[0]["function"]}
_RESPONSES: dict[str, Shape] = {
    "plain": Shape(),
    "instructions": Shape(both={"instructions": "Help."}),
    "tools": Shape(both={"tools": [_TOOL]}),
    "required": Shape(both={"tools": [_TOOL], "tool_choice": "required"}),
    "short": Shape(second={"max_output_tokens": 3}),
    "logprobs": Shape(second={"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    "format": Shape(both={"text": {"format": {"type": "json_object"}}}),
    "truncation": Shape(second={"truncation": "auto"}, reason="field"),
    "reasoning": Shape(second={"reasoning": {"effort": "low"}}, reason="field"),
    "fails": Shape(new=_said("fail 500")),
    "wrong": Shape(new=_said("fail 400")),
    "breaks off": Shape(new=_said("cut")),
}
_ALL_RESPONSES: dict[str, Shape] = {
    **_each("whole", _RESPONSES),
    **_each("streamed", _RESPONSES),
    **_each("raw", {name: _RESPONSES[name] for name in ("plain", "required", "fails")}),
    **_each("lines", {name: _RESPONSES[name] for name in ("plain", "required", "fails")}),
    **_each("helper", {name: _RESPONSES[name] for name in ("plain", "tools")}),
    **_each("left", {"plain": Shape()}),
}

# Its clients are asked for nothing, whatever engine the process is recorded with.
_MESSAGES: dict[str, Shape] = {
    "plain": Shape(reason=None),
    "system": Shape(both={"system": "Help."}, reason=None),
    "tools": Shape(both={"tools": [{"name": "tool", "input_schema": {"type": "object"}}]}, reason=None),
    "short": Shape(second={"max_tokens": 3}, reason=None),
    "fails": Shape(new=_said("fail 500"), reason=None),
}
_ALL_MESSAGES: dict[str, Shape] = {
    **_each("whole", _MESSAGES),
    **_each("streamed", _MESSAGES),
    **_each("raw", _MESSAGES),
    **_each("helper", {name: _MESSAGES[name] for name in ("plain", "tools")}),
}

_COMPLETIONS: dict[str, Shape] = {
    "plain": Shape(reason=None),
    "two": Shape(second={"n": 2}, reason=None),
    "echo": Shape(second={"echo": True}, reason=None),
    "logprobs": Shape(second={"logprobs": 2}, reason=None),
    "stop": Shape(second={"stop": ["wor"]}, reason=None),
    "fails": Shape(new=_said("fail 500"), reason=None),
}
_ALL_COMPLETIONS: dict[str, Shape] = {**_each("whole", _COMPLETIONS), **_each("streamed", _COMPLETIONS)}

SHAPES: dict[str, dict[str, Shape]] = {
    "chat": _each("whole", _ARGUMENTS),
    "chat, streamed": _each("streamed", {**_ARGUMENTS, **_STREAMED}),
    "chat, otherwise": _CHAT_OTHERWISE,
    "responses": _ALL_RESPONSES,
    "messages": _ALL_MESSAGES,
    "completions": _ALL_COMPLETIONS,
}
"""By the API that they are of, up to the comma."""


def script(request: Object, choice: int, messages: Sequence[Object]) -> Any:
    """Answers that are spelled letter by letter, a call where one is forced, and what the last message asks for."""
    said = str(messages[-1]["content"])
    if "fail " in said:
        return Fault(status=int(said.rpartition(" ")[2].strip("'}]")))
    if "no json" in said:
        return Fault(bad_json=True)
    if "cut" in said:
        return Fault(says("hello world, and more"), cut_after=3)
    if "error event" in said:
        return Fault(says("hello world, and more"), error_event_after=3)
    if request.get("tool_choice") not in (None, "auto", "none"):
        return Reply("hello" if choice else None, [("tool", '{"a":  1}')])
    if request.get("response_format") or "text" in request:
        return says('{"a":  1}')
    return says(f"hello world {choice} {len(messages)}")


async def turns(client: Any, api: str, shape: Shape) -> list[Any]:
    """Makes both turns, and returns what the second one gives: values, events, or the exception."""
    owner = _owner(client, api)
    first = await done(
        (owner.parse if shape.form == "parsed" else owner.create)(**_asked(api, _said("hi"), shape.both))
    )
    history = [*_said("hi"), *_BACK[api](first), *shape.new]
    try:
        return await _READ[shape.form](owner, _asked(api, history, {**shape.both, **shape.second}))
    except Exception as error:
        # The agent may meet any of the SDKs', of their HTTP libraries, of json; not one of this library.
        assert type(error).__module__.partition(".")[0] in _MAY_RAISE, repr(error)  # noqa: PT017
        return [type(error).__name__, str(error), getattr(error, "body", None)]


_MAY_RAISE = {"anthropic", "builtins", "httpx", "httpx2", "json", "openai", "pydantic_core"}


def _owner(client: Any, api: str) -> Any:
    return client.chat.completions if api == "chat" else getattr(client, api)


def _asked(api: str, history: Sequence[Object], options: Object) -> Object:
    if api == "completions":
        return {"model": "m", "prompt": " ".join(one["content"] for one in history), **options}
    if api == "messages":
        return {"model": "m", "max_tokens": 40, "messages": list(history), **options}
    return {"model": "m", "input" if api == "responses" else "messages": list(history), **options}


def _rewritten(arguments: str) -> str:
    """The arguments of a call as frameworks send them back: in their own JSON."""
    return json.dumps(json.loads(arguments))


def _of_chat(answer: Any) -> list[Object]:
    message = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = _rewritten(call["function"]["arguments"])
    return [message, *({"role": "tool", "tool_call_id": one["id"], "content": "result"}
                       for one in message.get("tool_calls") or ())]  # fmt: skip


def _of_responses(answer: Any) -> list[Object]:
    items: list[Object] = [one.model_dump(exclude_none=True) for one in answer.output]
    calls = [one for one in items if one["type"] == "function_call"]
    for call in calls:
        call["arguments"] = _rewritten(call["arguments"])
    return [*items, *({"type": "function_call_output", "call_id": one["call_id"], "output": "result"} for one in calls)]


_BACK: dict[str, Callable[[Any], list[Object]]] = {
    "chat": _of_chat,
    "responses": _of_responses,
    "messages": lambda answer: [{"role": "assistant", "content": [one.model_dump() for one in answer.content]}],
    "completions": lambda answer: [{"content": answer.choices[0].text}],
}


def _plain(value: Any) -> Any:
    # Parsed answers are of types that pydantic does not expect where they stand.
    return value.model_dump(warnings=False) if isinstance(value, BaseModel) else repr(value)


async def _whole(owner: Any, asked: Object) -> list[Any]:
    return [_plain(await done(owner.create(**asked)))]


async def _streamed(owner: Any, asked: Object) -> list[Any]:
    found: list[Any] = []
    try:
        async for one in each(await done(owner.create(**asked, stream=True))):
            found.append(_plain(one))
    except Exception as error:
        # What came before it is read too.
        found += [type(error).__name__, str(error)]
    return found


async def _raw(owner: Any, asked: Object) -> list[Any]:
    answer = await done(owner.with_raw_response.create(**asked))
    return [answer.status_code, _plain(await done(answer.parse())), answer.headers.get("content-type")]


async def _raw_streamed(owner: Any, asked: Object) -> list[Any]:
    answer = await done(owner.with_raw_response.create(**asked, stream=True))
    return [_plain(one) async for one in each(await done(answer.parse()))]


async def _bytes(owner: Any, asked: Object) -> list[Any]:
    async with entered(owner.with_streaming_response.create(**asked)) as answer:
        return [answer.status_code, await done(answer.read())]


async def _lines(owner: Any, asked: Object) -> list[Any]:
    async with entered(owner.with_streaming_response.create(**asked, stream=True)) as answer:
        return [line async for line in each(answer.iter_lines())]


async def _helper(owner: Any, asked: Object) -> list[Any]:
    async with entered(owner.stream(**asked)) as stream:
        events = [_plain(one) async for one in each(stream)]
        names = ("get_final_completion", "get_final_response", "get_final_message")
        (last,) = [getattr(stream, name) for name in names if hasattr(stream, name)]
        return [*events, _plain(await done(last()))]


async def _parsed(owner: Any, asked: Object) -> list[Any]:
    return [_plain(await done(owner.parse(**asked)))]


async def _left(owner: Any, asked: Object) -> list[Any]:
    stream, found = await done(owner.create(**asked, stream=True)), []
    async for one in each(stream):
        found.append(_plain(one))
        if len(found) == 3:
            break
    await done(stream.close())
    return found


_READ: dict[Form, Callable[[Any, Object], Awaitable[list[Any]]]] = {
    "whole": _whole,
    "streamed": _streamed,
    "raw": _raw,
    "raw streamed": _raw_streamed,
    "bytes": _bytes,
    "lines": _lines,
    "helper": _helper,
    "parsed": _parsed,
    "left": _left,
}
