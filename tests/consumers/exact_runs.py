"""Runs with exact turns, and the rows that their server served: from its own log, not from what was recorded.

The model spells words for which its tokenizer has an id each, so that by text every turn would begin a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from exact import Spelling, adds
from openai import InternalServerError, OpenAI

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.consumers.recorded import SYSTEM, TOOLS, ask
from tests.consumers.traces import Trace

ROWS = {"loop": 1, "outer": 1, "inner": 1, "failed": 1, "edited": 2, "cut": 1}
"""Number of rows of each run, by name: the history that its agent edits begins a second one."""


class Row(NamedTuple):
    """One row as the server served it."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    """0.0 where nothing was sampled."""
    prompt_length: int
    turns: Trace
    finish_reason: str
    """Of the last turn."""


Served = dict[str, list[Row]]


def record() -> tuple[list[rt.Trajectory], Served]:
    """Six runs of one group, and by their names the rows that were served.

    ``loop``: eight turns, seven of them calls of a tool. ``outer``: one of its tools is the agent ``inner``, a loop as
    well. ``failed``: its third call fails, and it gives up. ``edited``: its agent redacts a message after the second
    turn. ``cut``: a limit cuts its second answer and its last.
    """
    with (
        ScriptedServer(_answered, tokenizer=Spelling(("add", "arguments", "sum"))) as server,
        OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        rt.wrap_openai(client, engine=rt.Engine("vllm", exact_turns=True))
        runs = [_loop(client), *_outer(client), _failed(client), _edited(client), _cut(client)]
        served = _served(server)
    assert {name: len(rows) for name, rows in served.items()} == ROWS
    return runs, served


def expected(runs: Sequence[rt.Trajectory], served: Served) -> list[tuple[rt.Trajectory, Row]]:
    """Each served row with its run, in the order of the runs."""
    return [(run, row) for run in runs for row in served[str(run.name)]]


def _served(server: ScriptedServer) -> Served:
    """The rows of each agent: a request with ids continues the row before it, one without begins a row."""
    found: dict[str, list[list[tuple[Any, str]]]] = {}
    for record in server.requests:
        if not record.path.endswith("/chat/completions") or record.status != 200:
            continue
        answer = json.loads(record.response_body)
        (choice,) = answer["choices"]
        rows = found.setdefault(record.json["user"], [])
        if "kv_transfer_params" not in record.json:
            rows.append([])
        scores = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        rows[-1].append(((answer["prompt_token_ids"], choice["token_ids"], scores), choice["finish_reason"]))
    return {name: [_row([turn for turn, _ in row], row[-1][1]) for row in rows] for name, rows in found.items()}


def _row(turns: Trace, finish_reason: str) -> Row:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for prompt, completion, scores in turns:
        assert prompt[: len(ids)] == ids, "the server was sent other ids than it had sampled"
        between = len(prompt) - len(ids)
        ids = [*prompt, *completion]
        mask += [0] * between + [1] * len(completion)
        logprobs += [0.0] * between + scores
    return Row(ids, mask, logprobs, len(turns[0][0]), turns, finish_reason)


def _answered(request: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Reply | Fault:
    done = sum(message["role"] == "assistant" for message in messages)
    if request["user"] == "failed" and done == 2:
        return Fault(status=500)
    if request["user"] == "outer" and not done:
        return Reply("I ask.", [("add", '{"a": 1,  "b": 2}')])
    return adds(request, messages) if request["user"] in ("loop", "inner") else Reply(f"The sum is {done}.")


def _begun(name: str) -> list[Any]:
    return [SYSTEM, {"role": "user", "content": f"I am {name}."}]


def _asked(client: OpenAI, messages: list[Any], name: str, **fields: Any) -> list[dict[str, Any]]:
    """Asks, and appends the answer; returns its calls."""
    messages.append(ask(client, messages, user=name, tools=TOOLS, **fields))
    calls: list[dict[str, Any]] = messages[-1].get("tool_calls", [])
    return calls


def _talk(client: OpenAI, messages: list[Any], name: str, **fields: Any) -> None:
    _asked(client, messages, name, **fields)
    messages.append({"role": "user", "content": "Is the sum known?"})


def _add(client: OpenAI, name: str) -> str:
    """Runs a tool as long as the model calls it; returns the last answer."""
    messages = _begun(name)
    while calls := _asked(client, messages, name):
        for call in calls:
            with rt.tool_run("add", tool_call_id=call["id"], arguments=call["function"]["arguments"]) as run:
                run.result = "the sum is 3"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": run.result})
    return str(messages[-1]["content"])


def _run(name: str, index: int) -> Any:
    return rt.trajectory(name, task={"id": "exact/1"}, group="exact/1", rollout_index=index)


def _loop(client: OpenAI) -> rt.Trajectory:
    with _run("loop", 0) as run:
        _add(client, "loop")
        run.reward = 1.0
    return run  # type: ignore[no-any-return]


def _outer(client: OpenAI) -> list[rt.Trajectory]:
    with _run("outer", 1) as run:
        messages = _begun("outer")
        for call in _asked(client, messages, "outer"):
            with rt.trajectory("inner") as inner:
                result = _add(client, "inner")
                inner.reward = 0.5
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        _talk(client, messages, "outer")
        _talk(client, messages, "outer")
        run.reward = 0.25
    return [run, inner]


def _failed(client: OpenAI) -> rt.Trajectory:
    try:
        with _run("failed", 2) as run:
            messages = _begun("failed")
            run.reward = 0.0
            for _ in range(3):
                _talk(client, messages, "failed")
    except InternalServerError:
        pass
    return run  # type: ignore[no-any-return]


def _edited(client: OpenAI) -> rt.Trajectory:
    with _run("edited", 3) as run:
        messages = _begun("edited")
        for turn in range(4):
            if turn == 2:
                messages[1] = {"role": "user", "content": "I am [redacted]."}
            _talk(client, messages, "edited")
        run.reward = 0.75
    return run  # type: ignore[no-any-return]


def _cut(client: OpenAI) -> rt.Trajectory:
    with _run("cut", 4) as run:
        messages = _begun("cut")
        for turn in range(4):
            _talk(client, messages, "cut", **({"max_tokens": 9} if turn % 2 else {}))
        run.reward = 0.5
    return run  # type: ignore[no-any-return]
