"""A program reads from a live engine what it would read without the recorder, and no call fails by what was added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

import rollout_trace as rt
from tests.live_engines.calls import ARGUMENTS
from tests.live_engines.clients import openai_client
from tests.live_engines.servers import NotInstalled, Server, started

Object = dict[str, Any]

CHAT, TEXT = ARGUMENTS["openai.chat", "plain"], ARGUMENTS["openai.completions", "plain"]
_TOOLS = ARGUMENTS["openai.chat", "tools"]["tools"]
_FORCED = ARGUMENTS["openai.chat", "forced_tool"]
_LOOSE = [{"type": "function", "function": {**_TOOLS[0]["function"], "strict": False}}]
_NAMED = {"type": "function", "function": {"name": "get_weather"}}
_TWO = r'(<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Tokyo)"\}\}\n</tool_call>\n?){2}'
_USAGE = {"include_usage": True}
_RUNNING = {**_USAGE, "continuous_usage_stats": True}
# Single bytes: nearly every token ends inside a character.
_PIECES = [*range(94, 256)]


def _vllm(arguments: Object, **extra: Any) -> Object:
    return {**arguments, "extra_body": extra}


# By name, the arguments of `chat.completions.create`, or of `completions.create` where there is a prompt.
SHAPES: dict[str, Object] = {
    "plain": CHAT,
    "long": {**CHAT, "max_tokens": 200},
    "one_token": {**CHAT, "max_tokens": 1},
    "two": {**CHAT, "n": 2},
    "greedy": {**CHAT, "temperature": 0},
    "stop": {**CHAT, "max_tokens": 100, "stop": ["e", "ab"]},
    "stop_long": {**CHAT, "max_tokens": 100, "stop": ["never said at all"]},
    "stop_two": {**CHAT, "max_tokens": 100, "n": 2, "stop": ["e"]},
    "usage": {**CHAT, "stream_options": _USAGE},
    "running_usage": {**CHAT, "stream_options": _RUNNING},
    "running_alone": {**CHAT, "stream_options": {"continuous_usage_stats": True}},
    "no_usage": {**CHAT, "stream_options": {"include_usage": False}},
    "logprobs": {**CHAT, "logprobs": True},
    "alternatives": {**CHAT, "logprobs": True, "top_logprobs": 3},
    "logprobs_usage": {**CHAT, "logprobs": True, "stream_options": _RUNNING},
    "no_logprobs": {**CHAT, "logprobs": False},
    "ids": _vllm(CHAT, return_token_ids=True),
    "ids_logprobs": _vllm({**CHAT, "logprobs": True}, return_token_ids=True),
    "no_ids": _vllm(CHAT, return_token_ids=False),
    "stop_ids": _vllm(CHAT, stop_token_ids=[*range(0, 2000, 10)]),
    "include_stop": _vllm({**CHAT, "stop": ["e"]}, include_stop_str_in_output=True),
    "special": _vllm(CHAT, skip_special_tokens=False),
    "half_characters": _vllm(CHAT, allowed_token_ids=_PIECES),
    "half_characters_two": _vllm({**CHAT, "n": 2, "stop": ["é"]}, allowed_token_ids=_PIECES),
    "half_usage": _vllm({**CHAT, "stream_options": _RUNNING}, allowed_token_ids=_PIECES),
    "end_at_once": {**CHAT, "logit_bias": {"2041": 100}},
    "min_tokens": _vllm({**CHAT, "logit_bias": {"2041": 100}}, min_tokens=4),
    "echo": _vllm(CHAT, echo=True),
    "prompt_text": _vllm(CHAT, return_prompt_text=True),
    "as_ids": _vllm({**CHAT, "logprobs": True}, return_tokens_as_token_ids=True),
    "regex": _vllm(CHAT, structured_outputs={"regex": "[a-f🙂é]{30}"}),
    "choice": _vllm(CHAT, structured_outputs={"choice": ["Paris", "Tokyo"]}),
    "schema": ARGUMENTS["openai.chat", "schema"],
    "json_object": {**CHAT, "response_format": {"type": "json_object"}},
    "tools": {**CHAT, "tools": _TOOLS},
    "tools_none": {**CHAT, "tools": _TOOLS, "tool_choice": "none"},
    "tools_usage": {**CHAT, "tools": _TOOLS, "stream_options": _RUNNING},
    "tools_auto_one": _vllm({**_FORCED, "tool_choice": "auto"}, structured_outputs={"regex": _TWO[:-3]}),
    "tools_auto_two": _vllm({**_FORCED, "tool_choice": "auto"}, structured_outputs={"regex": _TWO}),
    "tools_auto_two_usage": _vllm(
        {**_FORCED, "tool_choice": "auto", "stream_options": _RUNNING}, structured_outputs={"regex": _TWO}
    ),
    "tools_auto_choices": _vllm({**_FORCED, "tool_choice": "auto", "n": 2}, structured_outputs={"regex": _TWO}),
    "tools_auto_logprobs": _vllm(
        {**_FORCED, "tool_choice": "auto", "logprobs": True}, structured_outputs={"regex": _TWO}
    ),
    "tools_text_and_call": _vllm(
        {**_FORCED, "tool_choice": "auto"}, structured_outputs={"regex": "I look. " + _TWO[:-3] + " Done\\."}
    ),
    "tools_not_parallel": _vllm(
        {**_FORCED, "tool_choice": "auto", "parallel_tool_calls": False}, structured_outputs={"regex": _TWO}
    ),
    "tools_cut": _vllm({**_FORCED, "tool_choice": "auto", "max_tokens": 12}, structured_outputs={"regex": _TWO}),
    "tools_loose": {**_FORCED, "tools": _LOOSE},
    "required": _FORCED,
    "required_two": {**_FORCED, "n": 2},
    "required_cut": {**_FORCED, "max_tokens": 8},
    "required_usage": {**_FORCED, "stream_options": _RUNNING},
    "required_logprobs": {**_FORCED, "logprobs": True, "top_logprobs": 2},
    "named": {**_FORCED, "tool_choice": _NAMED},
    "named_cut": {**_FORCED, "tool_choice": _NAMED, "max_tokens": 8},
    "reasoning_excluded": _vllm(CHAT, include_reasoning=False),
    "reasoned": _vllm({**CHAT, "max_tokens": 100}, structured_outputs={"regex": "<think>[a-z ]{5,20}</think>[a-z]{9}"}),
    "beams": _vllm({**CHAT, "n": 2, "max_tokens": 6, "temperature": 0}, use_beam_search=True),
    "beams_logprobs": _vllm({**CHAT, "n": 2, "max_tokens": 6, "logprobs": True}, use_beam_search=True),
    "text": TEXT,
    "text_long": {**TEXT, "max_tokens": 200},
    "text_one_token": {**TEXT, "max_tokens": 1},
    "text_no_token": {**TEXT, "max_tokens": 0},
    "text_two": {**TEXT, "n": 2},
    "text_prompts": {**TEXT, "prompt": ["def f(x):", "import os\n"], "n": 2},
    "text_prompt_ids": {**TEXT, "prompt": [300, 301, 302]},
    "text_prompts_ids": {**TEXT, "prompt": [[300, 301], [302, 303, 304]]},
    "text_stop": {**TEXT, "max_tokens": 100, "stop": ["e", "ab"]},
    "text_stop_ids": _vllm(TEXT, stop_token_ids=[*range(0, 2000, 10)]),
    "text_usage": {**TEXT, "stream_options": _USAGE},
    "text_running_usage": {**TEXT, "stream_options": _RUNNING},
    "text_logprobs": {**TEXT, "logprobs": 2},
    "text_logprobs_0": {**TEXT, "logprobs": 0},
    "text_ids": _vllm(TEXT, return_token_ids=True),
    "text_echo": {**TEXT, "echo": True},
    "text_echo_two": {**TEXT, "echo": True, "n": 2},
    "text_echo_logprobs": {**TEXT, "echo": True, "logprobs": 1},
    "text_echo_ids": _vllm({**TEXT, "echo": True}, return_token_ids=True),
    "text_echo_nothing": {**TEXT, "echo": True, "max_tokens": 0},
    "text_half_characters": _vllm(TEXT, allowed_token_ids=_PIECES),
    "text_regex": _vllm(TEXT, structured_outputs={"regex": "[a-f🙂é]{30}"}),
    "text_min_tokens": _vllm({**TEXT, "logit_bias": {"2041": 100}}, min_tokens=4),
    "text_suffix": {**TEXT, "suffix": "end"},
    "text_beams": _vllm({**TEXT, "n": 2, "max_tokens": 6, "temperature": 0}, use_beam_search=True),
    "text_beams_echo": _vllm({**TEXT, "n": 2, "max_tokens": 6, "echo": True}, use_beam_search=True),
    "text_prompt_logprobs": _vllm(TEXT, prompt_logprobs=1),
    "chat_prompt_logprobs": _vllm(CHAT, prompt_logprobs=1),
    "wrong_top_logprobs": {**CHAT, "top_logprobs": 2},
    "wrong_temperature": {**CHAT, "temperature": -1},
    "wrong_length": {**TEXT, "prompt": [300] * 9000},
}

# Their own fields leave out ids or logprobs, or nothing is sampled.
_INCOMPLETE = {"no_logprobs", "no_ids", "reasoning_excluded", "text_echo_nothing", "text_echo_ids"}
_VARYING = {"id", "created", "system_fingerprint", "metrics", "timings", "prompt_tokens_details"}
_ADDED = {"token_ids", "prompt_token_ids", "prompt_logprobs", "logprobs", "weight_versions", "__verbose"}
_OWN = {"logprobs": {"logprobs"}, "return_token_ids": {"token_ids", "prompt_token_ids"}}
_TRIES = 5
"""A slow reader gets several tokens in one chunk, without the recorder too."""


@pytest.fixture(scope="module", params=["vllm", "vllm-reasoning", "llama-server"])
def answering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An engine; vLLM also with a parser of reasoning and several tokens in each chunk."""
    engine, is_reasoning, _ = request.param.partition("-reasoning")
    options = ("--reasoning-parser", "qwen3", "--stream-interval", "4") if is_reasoning else ()
    try:
        with started(engine, tmp_path_factory.mktemp("engine"), options=options) as running:
            yield running
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_same_is_read(answering: Server, name: str, streamed: bool) -> None:
    """Chunk by chunk and error by error; and the step has all tokens."""
    for _ in range(_TRIES):
        with openai_client(answering) as (client, _):
            plain = read(client, name, streamed)
        with openai_client(answering) as (client, _):
            rt.wrap_openai(client, engine=answering.engine)
            with rt.trajectory() as trajectory:
                ours = read(client, name, streamed)
        if ours == plain:
            break
    assert ours == plain
    assert trajectory.steps
    assert {step.status for step in trajectory.steps} == {"error" if isinstance(plain, str) else "ok"}
    if answering.engine == "vllm" and not isinstance(plain, str) and name not in _INCOMPLETE:
        for step in trajectory.steps:
            assert_complete(step, SHAPES[name])


def assert_complete(step: rt.Step, arguments: Object) -> None:
    """All ids and logprobs are there, save where vLLM is asked for nothing."""
    if "prompt" in arguments and arguments.get("echo"):
        assert step.completion_token_ids is None
        assert step.token_issue is not None
        return
    assert step.token_issue is None
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    assert len(step.completion_token_ids) == len(step.logprobs)
    if step.usage is not None and arguments.get("n", 1) == 1 and not isinstance(arguments.get("prompt"), list):
        assert len(step.logprobs) == step.usage.output


def read(client: Any, name: str, streamed: bool) -> list[Object] | str:
    """What the SDK gives, as plain values, those of one choice together; or the error that it raises."""
    arguments = dict(SHAPES[name])
    if streamed:
        arguments["stream"] = True
    else:
        arguments.pop("stream_options", None)
    create = client.completions.create if "prompt" in arguments else client.chat.completions.create
    hidden = _VARYING | (_ADDED - _asked_for(arguments))
    if name == "running_alone":
        # Without `include_usage`, which is added, vLLM sends none.
        hidden.add("usage")
    try:
        answer = create(**arguments)
        # llama-server sends `null` where it has nothing to say yet.
        found = [_plain(one.to_dict(), hidden) for one in (answer if streamed else [answer]) if one]
    except openai.APIConnectionError:
        # A server that is gone is no answer: both would be equal.
        raise
    except openai.APIError as error:
        return f"{type(error).__name__}: {error}"
    # Which choice comes first is a matter of time.
    return sorted(found, key=lambda one: [choice["index"] for choice in one["choices"]] or [99])


def _asked_for(arguments: Object) -> set[str]:
    asked = {**arguments, **arguments.get("extra_body", {})}
    return {name for field, names in _OWN.items() if asked.get(field) not in (None, False) for name in names}


def _plain(value: Any, hidden: set[str]) -> Any:
    if isinstance(value, dict):
        # The ids of tool calls are random.
        return {name: _plain(item, hidden) for name, item in value.items() if name not in hidden}
    return [_plain(item, hidden) for item in value] if isinstance(value, list) else value
