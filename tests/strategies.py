"""Hypothesis strategies: trajectories with anything in any field, as servers and users may send it.

Those of `rollout_trace.testing.trajectories` are conversations that an agent could have had.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias, get_args

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from rollout_trace.data.exact_turn import ExactTurn, Reason
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import ExtraIssue, JSONText, TopTokenRows
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import (
    Attempt,
    Completion,
    Cost,
    ErrorInfo,
    Step,
    Task,
    TokenIssue,
    ToolCall,
    ToolRun,
    Usage,
)  # fmt: skip
from rollout_trace.data.rows import RowStore
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.testing.strategies import extras, log_probabilities
from tests.amount import examples

__all__ = ["PROFILE", "json_values", "texts", "trajectories"]

# The same examples in every run, on every machine.
PROFILE = settings(max_examples=examples(80))

Values: TypeAlias = "st.SearchStrategy[Any]"


def whole_characters(text: str) -> str:
    """A high surrogate followed by a low one is one character: in JSON they cannot be told apart."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.text(st.characters(exclude_categories=()), max_size=12).map(whole_characters) | st.sampled_from(
    ["", "plain", '"quoted"\\\n\t', "naïve 数 🐍", "\x00\x1f\x7f\u2028", "cut \ud83d", "\udc0d", "</script>"]
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-10, 10)
integers = st.integers(-5, 5) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**64, -(2**63), 10**30])
durations = st.floats(0, 1e6).map(lambda seconds: round(seconds, 9))
times = st.datetimes(
    datetime(1970, 1, 1),
    datetime(2200, 1, 1),
    timezones=st.sampled_from([timezone.utc, timezone.utc, timezone(timedelta(hours=5, minutes=30))]),
)
json_values: Values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, json_values, max_size=2)
names = texts | st.none()


def some(kind: Any, **fields: Values) -> Values:
    """Objects with any of the optional fields given."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


errors = st.builds(
    ErrorInfo, type=texts, message=texts, code=st.none() | texts | integers, status=st.none() | st.integers(100, 599)
)
usages = some(Usage, input=integers, output=integers, cache_read=integers, reasoning=integers, extra=objects)
costs = st.builds(Cost, amount=numbers, currency=texts, source=st.sampled_from(["override", "table", "unknown"]))

# Few different ids, so that prompts often share a prefix by chance too; and the ends of what an id can be.
token_ids = st.lists(st.sampled_from([0, 1, 2, 7, 2**31 - 1]), max_size=6)


@st.composite
def prompt(draw: st.DrawFn, before: list[int], answer: list[int]) -> list[int]:
    """The next prompt of a conversation: it goes on, repeats (n > 1), forks, drifts by one id, or begins anew."""
    whole = before + answer
    kind = draw(st.sampled_from(["on", "on", "repeat", "fork", "drift", "anew"]))
    new = draw(token_ids)
    if kind == "repeat":
        return before
    if kind == "anew":
        return new
    cut = draw(st.integers(0, len(whole))) if kind in ("fork", "drift") else len(whole)
    if kind == "drift" and cut < len(whole):
        return [*whole[:cut], whole[cut] ^ 1, *whole[cut + 1 :]]
    return whole[:cut] + new


tool_calls = some(ToolCall, id=texts, name=texts, arguments=texts, type=texts, extra=objects)
completions = some(
    Completion,
    role=texts,
    content=texts | st.lists(json_values, max_size=2),
    reasoning=texts,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    refusal=texts,
    extra=objects,
)
attempts = some(
    Attempt,
    started_at=times,
    duration=durations,
    status=st.integers(100, 599),
    error=errors,
    request_id=texts,
    content_type=texts,
)
tool_runs = some(
    ToolRun,
    tool_call_id=texts,
    name=texts,
    arguments=json_values,
    result=json_values,
    error=errors,
    started_at=times,
    duration=durations,
    step_id=texts,
)


def mostly(kind: Values) -> Values:
    """Values of the kind that is meant, and now and then any other: what servers and users send is not checked."""
    return st.integers(0, 5).flatmap(lambda chance: kind if chance else json_values)


PARTS = (
    "text", "input_text", "output_text", "image_url", "image", "document", "refusal", "tool_use", "tool_result",
    "thinking",
)  # fmt: skip
contents = mostly(
    texts
    | st.lists(
        mostly(
            some(
                dict,
                type=mostly(st.sampled_from(PARTS)),
                text=mostly(texts),
                image_url=mostly(st.fixed_dictionaries({"url": texts})),
                source=mostly(st.fixed_dictionaries({"type": st.sampled_from(["base64", "text", "url"])})),
                id=mostly(texts),
                name=mostly(texts),
                input=mostly(objects),
                tool_use_id=mostly(texts),
                content=mostly(texts),
                thinking=mostly(texts),
            )
        ),
        max_size=2,
    )
)
sent_calls = some(
    dict,
    id=mostly(texts),
    type=mostly(st.sampled_from(["function", "custom"])),
    function=mostly(some(dict, name=mostly(texts), arguments=mostly(texts | st.just('{"a": 1}')))),
    custom=mostly(some(dict, name=mostly(texts), input=mostly(texts))),
)
sent_messages = mostly(
    some(
        dict,
        role=mostly(st.sampled_from(["user", "user", "assistant", "assistant", "system", "developer", "tool"])),
        content=contents,
        tool_calls=mostly(st.lists(mostly(sent_calls), max_size=2)),
        tool_call_id=mostly(texts),
        reasoning=mostly(texts),
        refusal=mostly(texts),
        # Items of Responses.
        type=mostly(
            st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "web_search_call"])
        ),
        call_id=mostly(texts),
        name=mostly(texts),
        arguments=mostly(texts),
        output=contents,
        summary=mostly(st.lists(mostly(some(dict, text=mostly(texts))), max_size=2)),
    )
)
"""Messages of every protocol, well formed or not."""
sent_tools = mostly(
    some(
        dict,
        type=mostly(st.sampled_from(["function", "custom", "web_search"])),
        function=mostly(some(dict, name=mostly(texts), parameters=mostly(objects))),
        name=mostly(texts),
        input_schema=mostly(objects),
    )
)
PROTOCOLS = (
    "openai.chat", "openai.chat", "openai.responses", "anthropic.messages", "openai.completions", "sglang.generate"
)  # fmt: skip
step_facts = st.fixed_dictionaries(
    {},
    optional={
        "choice": st.integers(0, 3),
        "agent": names,
        "protocol": st.sampled_from(PROTOCOLS),
        "engine": names,
        "model": names,
        "response_model": names,
        "response_id": names,
        "sampling": objects,
        "completion": completions,
        "finish_reason": names,
        "stop_reason": texts | integers,
        "top_logprobs": st.lists(st.lists(objects, max_size=2), max_size=2)
        | st.sampled_from([b"[]", b'[[{"token": "a", "logprob": -0.50}],\n []]', b'[[{"token":"\\ud83d"}]]']).map(
            JSONText
        ),
        "token_source": st.sampled_from(["engine", "logprobs", "retokenized"]),
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
        "token_issue": st.builds(TokenIssue, code=texts, message=texts),
        "usage": usages,
        "cost": costs,
        "started_at": times,
        "latency": durations,
        "time_to_first_token": durations,
        "attempts": st.lists(attempts, max_size=2).map(tuple),
        "status": st.sampled_from(["ok", "error", "cancelled", "abandoned", "cached", "superseded"]),
        "error": errors,
        "reward": numbers,
        "advantage": numbers | st.lists(numbers, max_size=2),
        "trainable": st.booleans(),
        "policy_version": texts | integers,
        "metadata": objects,
        "request_bytes": st.binary(max_size=8) | texts.map(lambda text: text.encode("utf-8", "replace")),
        "response_bytes": st.binary(max_size=8),
        "extra": objects,
        "extra_issues": st.lists(st.builds(ExtraIssue, field=texts, code=texts, message=texts), max_size=2).map(tuple),
        "exact_turn": st.none()
        | st.builds(ExactTurn, step_id=texts, n_ids=st.integers(0, 9), n_requests=st.integers(0, 4))
        | st.builds(ExactTurn, reason=st.sampled_from(get_args(Reason)), detail=texts, message=st.integers(0, 9)),
    },
)
moments = st.floats(0, 1e5).map(lambda seconds: round(seconds, 6))
_TALK = '{"model": "m", "messages": ["naïve", "数", "🐍", "plain", "é"], "tools": []}'.encode()
request_bytes = st.one_of(
    # Those of one conversation, cut anywhere, inside a character too; and any others.
    st.tuples(
        st.integers(0, len(_TALK)), st.binary(max_size=3) | texts.map(lambda one: one.encode("utf-8", "replace"))
    ).map(lambda given: _TALK * 2 + _TALK[: given[0]] + given[1] + _TALK[given[0] :] + _TALK * 2),
    st.binary(max_size=8),
    texts.map(lambda one: one.encode("utf-8", "replace")),
)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """An exchange of any outcome; its pieces may be empty."""
    pieces = draw(st.lists(st.binary(max_size=6) | st.sampled_from([b"data: {}\n\n", "数".encode()]), max_size=3))
    timed = draw(st.booleans())
    return Exchange(
        name=draw(texts),
        method=draw(st.sampled_from(["POST", "GET"])),
        path=draw(texts),
        request=draw(request_bytes),
        status=draw(st.none() | st.integers(100, 599)),
        headers=draw(st.lists(st.tuples(texts, texts), max_size=2).map(tuple)),
        response=b"".join(pieces),
        chunk_sizes=tuple(map(len, pieces)),
        request_content_type=draw(names),
        protocol=draw(names),
        call_id=draw(names),
        chunk_times=tuple(draw(moments) for _ in pieces) if timed else (),
        outcome=draw(st.sampled_from(["complete", "cut", "unreachable", "closed"])),
        started_at=draw(st.none() | times),
        duration=draw(st.none() | durations),
    )


trajectory_facts = st.fixed_dictionaries(
    {},
    optional={
        "id": texts,
        "name": texts,
        "episode_id": texts,
        "parent_id": names,
        "parent_step_id": names,
        "group_id": names,
        "rollout_index": st.integers(0, 9),
        "task": some(Task, id=texts, data=json_values),
        "tool_runs": st.lists(tool_runs, max_size=2),
        "reward": numbers,
        "rewards": st.dictionaries(texts, numbers, max_size=2),
        "metrics": st.dictionaries(texts, numbers, max_size=2),
        "status": texts,
        "stop_reason": names,
        "error": errors,
        "started_at": times,
        "ended_at": times,
        "environment": objects,
        "metadata": objects,
        "exchanges": st.lists(exchanges(), max_size=2).map(tuple),
    },
)


@st.composite
def steps(draw: st.DrawFn, *, live: bool) -> list[Step]:
    """Steps of one conversation. ``live``: they hold spans of shared stores, as the recorder's; else plain arrays."""
    tokens, rows, messages, tools = TokenStore(), RowStore(), ListStore(), ListStore()
    told, offered_ones = draw(st.lists(sent_messages, min_size=1, max_size=5)), draw(st.lists(sent_tools, max_size=2))
    # Requests that go on from each other, and any others.
    requests = st.integers(0, len(told)).map(lambda n: told[:n]) | st.lists(st.sampled_from(told), max_size=6)
    found: list[Step] = []
    before: list[int] = []
    answer: list[int] = []
    for at in range(draw(st.integers(0, 4))):
        before, answer = draw(prompt(before, answer)), draw(token_ids)
        ids: list[Any] = [None if draw(st.integers(0, 5)) == 0 else np.array(one, np.int32) for one in (before, answer)]
        logprobs: Any = draw(st.none() | st.lists(log_probabilities, min_size=len(answer), max_size=len(answer)))
        spelled = draw(st.none() | st.lists(texts, min_size=len(answer), max_size=len(answer)))
        sent, offered = draw(st.none() | requests), draw(st.none() | st.just(offered_ones))
        held: dict[str, Any] = {"messages": sent, "tools": offered}
        if live:
            ids = list(tokens.add(*ids))
            held = {
                "messages": None if sent is None else messages.add_items(list(sent)),
                "tools": None if offered is None else tools.add_items(list(offered)),
            }
        found.append(
            Step(
                id=f"call{at}.0",
                call_id=draw(st.sampled_from([f"call{at}", "another"])),
                index=draw(st.sampled_from([at, at, 0])),
                prompt_token_ids=ids[0],
                completion_token_ids=ids[1],
                logprobs=logprobs,
                token_texts=spelled,
                **held,
                **in_rows(draw(extras(len(before), len(answer))), rows if live else None, len(before) + len(answer)),
                **draw(step_facts),
            )
        )
    return found


def in_rows(found: dict[str, Any], rows: RowStore | None, ids: int) -> dict[str, Any]:
    """Extras of a step of so many ids, those that are shared along prefixes in a store, if there is one."""
    if rows is None:
        return found
    stored = dict(found)
    if "routed_experts" in found:
        experts = found["routed_experts"]
        stored["routed_experts"] = rows.add("routed_experts", experts, max(0, ids - 1 - len(experts)))
    if "prompt_logprobs" in found:
        stored["prompt_logprobs"] = rows.add("prompt_logprobs", found["prompt_logprobs"])
    if "prompt_top_tokens" in found:
        top = found["prompt_top_tokens"]
        spans = rows.add("prompt_top_ids", top.ids), rows.add("prompt_top_logprobs", top.logprobs)
        stored["prompt_top_tokens"] = TopTokenRows(*spans)
    return stored


@st.composite
def trajectories(draw: st.DrawFn, *, live: bool | None = None) -> Trajectory:
    """Closed trajectories. ``live``: see ``steps``; None: either, or both in one."""
    kinds = [True, False] if live is None else [live]
    return Trajectory(steps=[step for kind in kinds for step in draw(steps(live=kind))], **draw(trajectory_facts))
