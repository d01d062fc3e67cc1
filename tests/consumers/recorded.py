"""Trajectories as agents leave them, recorded through the wrapped clients, each once a process.

Every function gives closed trajectories that are the caller's own: a test may set rewards and the like.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

from openai import InternalServerError, OpenAI

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer, load_exchanges
from rollout_trace.wire import decode
from rollout_trace.wire.profiles import EngineName

DATA = Path(__file__).parent.parent / "data"
PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/v1/responses": "openai.responses",
    "/v1/messages": "anthropic.messages",
    "/inference/v1/generate": "sglang.generate",
}

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]
SYSTEM: dict[str, Any] = {"role": "system", "content": "You add numbers. Naïve answers are fine: 数 🐍."}
GROUPS: dict[str, tuple[list[Any], tuple[float, ...]]] = {
    "add/1": ([1, 2, 3], (1.0, 0.0, 0.5)),
    "add/2": ([40, 2, -7.5], (0.25, 1.0, 1.0)),
}
"""The task of each group: the numbers to add; and the rewards of its runs."""
IMAGE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


P = ParamSpec("P")


def once(function: Callable[P, list[rt.Trajectory]]) -> Callable[P, list[rt.Trajectory]]:
    """Runs a function once for the same arguments; each caller gets copies, with ids of their own."""
    pickled: Callable[..., bytes] = functools.lru_cache(
        lambda *args, **options: pickle.dumps(function(*args, **options))
    )

    @functools.wraps(function)
    def copies(*args: P.args, **options: P.kwargs) -> list[rt.Trajectory]:
        recording = pickled(*args, **options)
        for one in pickle.loads(recording):
            for old in {one.id, one.episode_id}:
                recording = recording.replace(old.encode(), rt.Trajectory().id.encode())
        found: list[rt.Trajectory] = pickle.loads(recording)
        return found

    return copies


@once
def tool_agent(*, engine: EngineName | None = "vllm", stream: bool = False) -> list[rt.Trajectory]:
    """Two groups of three runs: an agent that calls a tool for each number, then answers. All turns extend each other.

    Rewards are those of ``GROUPS``; the task's data are its numbers; the tool runs are recorded.
    """
    with model(adding) as (_, client):
        if engine is not None:
            rt.wrap_openai(client, engine=engine)
        else:
            rt.wrap_openai(client)
        found = []
        for group, (numbers, rewards) in GROUPS.items():
            for index, reward in enumerate(rewards):
                task = {"id": group, "numbers": numbers, "answer": sum(numbers)}
                with rt.trajectory("adder", task=task, group=group, rollout_index=index) as trajectory:
                    add_all(client, numbers, seed=index, stream=stream)
                    trajectory.reward = reward
                found.append(trajectory)
    return found


@once
def annotated() -> list[rt.Trajectory]:
    """``tool_agent`` with what a user adds: rewards of steps and by name, advantages, policy versions, metadata."""
    found = tool_agent()
    for trajectory in found:
        trajectory.rewards, trajectory.metrics = {"correct": 1.0, "short": 0.125}, {"turns": len(trajectory.steps)}
        trajectory.metadata = {"split": "train"}
        for number, step in enumerate(trajectory.steps):
            step.reward, step.policy_version, step.metadata = 0.5 * number, 7, {"turn": number}
            assert step.completion_token_ids is not None
            step.advantage = -0.25 if number == 0 else [0.125 * at for at in range(len(step.completion_token_ids))]
    return found


@once
def unscored() -> list[rt.Trajectory]:
    """``tool_agent`` without a reward on the second run of each group."""
    found = tool_agent()
    for trajectory in found:
        if trajectory.rollout_index == 1:
            trajectory.reward = None
    return found


@once
def two_agents() -> list[rt.Trajectory]:
    """Two runs of a coordinator, a group, each with two trajectories inside: parent, child, child, twice."""
    found = []
    with model(adding) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        for index, reward in enumerate((1.0, 0.0)):
            task, children = {"id": "pair/1"}, []
            with rt.trajectory("coordinator", task=task, group="pair/1", rollout_index=index) as parent:
                add_all(client, [1, 1], seed=index)
                for numbers in ([5, 6], [7, 8, 9]):
                    with rt.trajectory("worker", task=task) as child:
                        add_all(client, numbers, seed=index)
                    children.append(child)
                parent.reward = reward
            found += [parent, *children]
    return found


@once
def interleaved() -> list[rt.Trajectory]:
    """One trajectory in which two conversations take turns: its sequences are two rows."""
    with model(lambda request: f"answer {len(request['messages'])}") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("pair", task="talk/1", group="talk/1", rollout_index=0) as trajectory:
            sides: list[list[Any]] = [[{"role": "user", "content": f"I am {name}."}] for name in ("left", "right")]
            for turn in range(3):
                for messages in sides:
                    messages += [ask(client, messages), {"role": "user", "content": f"go on {turn}"}]
            trajectory.reward = 0.75
    return [trajectory]


@once
def forked() -> list[rt.Trajectory]:
    """One trajectory: two turns, then the second turn anew from the same place, then a rewritten history."""
    with model(lambda request: f"answer {request['seed']}") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("searcher", task="search/1", group="search/1", rollout_index=0) as trajectory:
            start: list[Any] = [SYSTEM, {"role": "user", "content": "Find it."}]
            start.append(ask(client, start, seed=1))
            for seed in (2, 3):
                branch = [*start, {"role": "user", "content": f"Try way {seed}."}]
                branch.append(ask(client, branch, seed=seed))
            summary = [SYSTEM, {"role": "user", "content": "Find it. So far: two ways were tried."}]
            ask(client, summary, seed=4)
            trajectory.reward = 0.25
    return [trajectory]


@once
def several_choices() -> list[rt.Trajectory]:
    """One trajectory: a call with two choices, the second of which is gone on with."""
    with model(lambda request, choice: f"way {choice}" if request.get("n") else "done") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("chooser", task="choose/1", group="choose/1", rollout_index=0) as trajectory:
            messages: list[Any] = [{"role": "user", "content": "Which way?"}]
            answer = client.chat.completions.create(model="m", messages=messages, n=2)
            messages.append({"role": "assistant", "content": answer.choices[1].message.content})
            messages.append({"role": "user", "content": "Go."})
            ask(client, messages)
            trajectory.reward = 1.0
    return [trajectory]


@once
def without_ids() -> list[rt.Trajectory]:
    """``tool_agent`` on a server that was asked for no token ids."""
    return tool_agent(engine=None)


@once
def failed_steps() -> list[rt.Trajectory]:
    """One trajectory that failed, with steps of every status, an untrainable one and one cut by its length.

    In order: ok, error, abandoned, ok (finish_reason ``length``), ok (not trainable), superseded, cached, ok.
    """

    def script(request: dict[str, Any]) -> Any:
        seed = request["seed"]
        if seed == 1:
            return Fault(status=500)
        if seed == 2:
            return Fault("answer 2", hold_after=4)
        return Reply(f"answer {seed}", finish_reason="length" if seed == 3 else None)

    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with model(script) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        try:
            with rt.trajectory("unlucky", task="fail/1", group="fail/1", rollout_index=0) as trajectory:
                ask(client, messages, seed=0)
                try:
                    ask(client, messages, seed=1)
                except InternalServerError:
                    pass
                with client.chat.completions.create(model="m", messages=messages, seed=2, stream=True) as events:
                    for _ in range(4):  # The server holds the rest back.
                        next(iter(events))
                for seed in (3, 4, 5, 6, 7):
                    ask(client, messages, seed=seed)
                trajectory.reward = 0.0
                raise RuntimeError("the agent gave up")
        except RuntimeError:
            pass
    steps = trajectory.steps
    steps[4].trainable = False
    steps[5], steps[6] = replace(steps[5], status="superseded"), replace(steps[6], status="cached")
    return [trajectory]


@once
def drifting() -> list[rt.Trajectory]:
    """One trajectory whose agent writes the tool's arguments anew: equal JSON, other tokens in the next prompt."""
    with model(adding) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("adder", task="drift/1", group="drift/1", rollout_index=0) as trajectory:
            add_all(client, [1, 2, 3], rewrite=lambda arguments: json.dumps(json.loads(arguments), indent=1))
            trajectory.reward = 1.0
    return [trajectory]


@once
def thinking() -> list[rt.Trajectory]:
    """One trajectory of a model that reasons; its agent sends the reasoning of its first answer back, then no more."""

    def script(request: dict[str, Any]) -> Reply:
        return Reply(f"answer {len(request['messages'])}", reasoning=f"thought {len(request['messages'])}")

    with model(script) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("thinker", task="think/1", group="think/1", rollout_index=0) as trajectory:
            messages: list[Any] = [{"role": "user", "content": "Think."}]
            for turn in range(3):
                answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
                kept = {"reasoning": getattr(answer, "reasoning")} if turn == 0 else {}  # noqa: B009 - vLLM's own field
                messages.append({"role": "assistant", "content": answer.content, **kept})
                messages.append({"role": "user", "content": "Again."})
            trajectory.reward = 0.5
    return [trajectory]


@once
def bad_arguments() -> list[rt.Trajectory]:
    """One trajectory with tool calls whose arguments are no JSON object, beside one whose are."""
    written = ['{"a": 1, "b": 2}', '{"a": 1, ', "[1, 2]", ""]
    with model([Reply("Trying.", [("add", arguments) for arguments in written]), "It failed."]) as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("clumsy", task="bad/1", group="bad/1", rollout_index=0) as trajectory:
            messages: list[Any] = [{"role": "user", "content": "Add."}]
            messages.append(ask(client, messages, tools=TOOLS))
            for call in messages[-1]["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "error"})
            ask(client, messages, tools=TOOLS)
            trajectory.reward = 0.0
    return [trajectory]


@once
def images() -> list[rt.Trajectory]:
    """One trajectory whose user message has an image beside its text."""
    with model("A dot.") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("viewer", task="image/1", group="image/1", rollout_index=0) as trajectory:
            parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
            ask(client, [{"role": "user", "content": parts}])
            trajectory.reward = 1.0
    return [trajectory]


@once
def completions() -> list[rt.Trajectory]:
    """One trajectory of calls to /completions: text, then the ids of the first prompt."""
    with model("four") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("writer", task="text/1", group="text/1", rollout_index=0) as trajectory:
            client.completions.create(model="m", prompt="two and two is ", max_tokens=8)
            client.completions.create(model="m", prompt=[104, 105], max_tokens=8)
            trajectory.reward = 1.0
    return [trajectory]


@once
def responses_agent() -> list[rt.Trajectory]:
    """One trajectory of two turns through /responses, with instructions."""
    with model(lambda request: f"answer {len(request['input'])}") as (_, client):
        rt.wrap_openai(client, engine="vllm")
        with rt.trajectory("talker", task="responses/1", group="responses/1", rollout_index=0) as trajectory:
            items: list[Any] = []
            for question in ("What is 1 + 2?", "And 2 + 3?"):
                items.append({"role": "user", "content": question})
                answer = client.responses.create(model="m", input=items, instructions=SYSTEM["content"])
                items += [item.to_dict() for item in answer.output]
            trajectory.reward = 1.0
    return [trajectory]


@once
def engines() -> list[rt.Trajectory]:
    """What real servers answered, one trajectory for each server and protocol, as ``tests/data`` has it.

    Steps without anything in common, conversations of several turns, streams, tools, errors; some have no ids.
    """
    found = []
    for file in sorted(DATA.glob("wire_*.jsonl.xz")):
        trajectory = rt.Trajectory(name=file.name.split(".")[0], reward=1.0)
        for exchange in load_exchanges(file):
            protocol = PROTOCOLS.get(exchange.path.partition("?")[0])
            if protocol is not None:
                kind, status = exchange.content_type, exchange.status
                trajectory.steps += decode(
                    protocol, exchange.request, exchange.response, content_type=kind, status=status or 0
                )
        found.append(trajectory)
    return found


@once
def anthropic_agent() -> list[rt.Trajectory]:
    """One trajectory of an agent that calls a tool through Anthropic's /v1/messages, then answers. It has no ids."""
    from anthropic import Anthropic

    function = TOOLS[0]["function"]
    tool = {"name": "add", "description": function["description"], "input_schema": function["parameters"]}

    def script(request: dict[str, Any]) -> Reply:
        if len(request["messages"]) > 1:
            return Reply("The sum is 3.")
        return Reply("Adding.", [("add", '{"a": 1, "b": 2}')], "Add them.")

    with ScriptedServer(script) as server, Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        rt.wrap_anthropic(client)
        with rt.trajectory("adder", task="anthropic/1", group="anthropic/1", rollout_index=0) as trajectory:
            messages: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
            for _ in range(2):
                fields: dict[str, Any] = {"system": SYSTEM["content"], "tools": [tool], "messages": messages}
                answer = client.messages.create(model="m", max_tokens=200, **fields)
                messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})
            trajectory.reward = 1.0
    return [trajectory]


EVERY: tuple[Callable[[], list[rt.Trajectory]], ...] = (
    tool_agent,
    annotated,
    unscored,
    two_agents,
    interleaved,
    forked,
    several_choices,
    without_ids,
    failed_steps,
    drifting,
    thinking,
    bad_arguments,
    images,
    completions,
    responses_agent,
    engines,
)
"""All that need no SDK but openai's."""


# How they are recorded.


@contextmanager
def model(script: Any) -> Iterator[tuple[ScriptedServer, OpenAI]]:
    """A scripted server and a client of it, not wrapped."""
    with ScriptedServer(script) as server, OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield server, client


def adding(request: dict[str, Any]) -> Reply:
    """Calls ``add`` on the sum so far and the next number; the sum when none is left."""
    numbers = json.loads(request["messages"][1]["content"])
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    total = json.loads(results[-1]) if results else numbers[0]
    if len(results) + 1 == len(numbers):
        return Reply(f"The sum is {total}." + "!" * (request.get("seed") or 0))
    arguments = json.dumps({"a": total, "b": numbers[len(results) + 1]})
    return Reply("Adding." if not results else None, [("add", arguments)])


def add_all(
    client: OpenAI,
    numbers: list[Any],
    *,
    seed: int = 0,
    stream: bool = False,
    rewrite: Callable[[str], str] = lambda arguments: arguments,
) -> None:
    """The agent: it asks until the model calls no tool any more. ``rewrite`` changes the arguments it sends back."""
    messages: list[Any] = [SYSTEM, {"role": "user", "content": json.dumps(numbers)}]
    while True:
        answer = ask(client, messages, seed=seed, stream=stream, tools=TOOLS)
        messages.append(answer)
        for call in answer.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            with rt.tool_run("add", tool_call_id=call["id"], arguments=arguments) as run:
                asked = json.loads(arguments)
                run.result = json.dumps(asked["a"] + asked["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": run.result})
            call["function"]["arguments"] = rewrite(arguments)
        if "tool_calls" not in answer:
            return


def ask(client: OpenAI, messages: list[Any], *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The model's answer as the message that is sent back."""
    if stream:
        with client.chat.completions.stream(model="m", messages=messages, **fields) as events:
            message: Any = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(model="m", messages=messages, **fields).choices[0].message
    answer: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        answer["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
    return answer
