"""A tool-using agent on the openai client, recorded token for token.

Runs against an embedded server (no key, no network), or against yours:

    python quickstart.py
    python quickstart.py --base-url http://localhost:8000/v1 --engine vllm

It writes demo.jsonl. A file that exists is left alone, unless there is --overwrite.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openai import LengthFinishReasonError, OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
TASKS = {
    "chain/1": ("What is 12 * 7 + 5 ?", 89.0),
    "chain/2": ("What is 100 / 8 - 2 * 3 ?", 31.5),
    "chain/3": ("What is 9 + 16 - 30 ?", -5.0),
    "chain/4": ("What is 7 / 0 + 1 ?", 1.0),
}
PAIR = ("What is 17 * 23 ?", "What is 19 * 21 ?")
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out one operation on two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "for example 12 * 7"}},
            "required": ["expression"],
        },
    },
}
SYSTEM = "You answer arithmetic questions. Work from left to right, one calculator call a step; then give the number."


# The agent: nothing below is about recording, save the two lines marked so.


def calculator(expression: str) -> float:
    left, sign, right = expression.split()
    return OPERATORS[sign](float(left), float(right))


def solve(client: OpenAI, model: str, question: str, *, stream: bool) -> str:
    """Asks the model until it answers without calling a tool."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(8):
        message = ask(client, model, messages, stream=stream)
        if not message.tool_calls:
            return message.content or ""
        calls = [{"id": c.id, "type": "function", "function": to_dict(c.function)} for c in message.tool_calls]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        for call in message.tool_calls:
            result = run_tool(call.id, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def ask(client: OpenAI, model: str, messages: list[Any], *, stream: bool) -> Any:
    arguments: dict[str, Any] = {"model": model, "messages": messages, "tools": [CALCULATOR], "max_tokens": 256}
    if not stream:
        return client.chat.completions.create(**arguments).choices[0].message
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(stream=True, **arguments):
        state.handle_chunk(chunk)
    try:
        return state.get_final_completion().choices[0].message
    except LengthFinishReasonError as error:
        return error.completion.choices[0].message


def run_tool(call_id: str, arguments: str) -> str:
    try:
        with rt.tool_run("calculator", tool_call_id=call_id, arguments=arguments) as run:  # recorded
            run.result = f"{calculator(json.loads(arguments)['expression']):g}"
            return str(run.result)
    except (ArithmeticError, KeyError, ValueError) as error:
        return f"error: {error}"


def to_dict(function: Any) -> dict[str, str]:
    return {"name": function.name, "arguments": function.arguments}


def compare(client: OpenAI, model: str) -> str:
    """Two sub-agents at once, each with a trajectory of its own, and the larger of their answers."""

    def sub_agent(question: str) -> str:
        with rt.trajectory("sub-agent"):
            return solve(client, model, question, stream=False)

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(rt.propagate(sub_agent), PAIR))  # recorded
    return max(answers, key=number)


def number(text: str) -> float:
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else float("-inf")


# The embedded model: it asks the calculator for one operation at a time.


def script(request: dict[str, Any]) -> str | Reply:
    messages = request["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    results = [message["content"] for message in messages if message["role"] == "tool"]
    terms = re.findall(r"\d+(?:\.\d+)?|[-+*/]", question)
    done = len(results)
    if results and results[-1].startswith("error"):
        return "The calculator says that it cannot be done."
    if done == len(terms) // 2:
        return f"The answer is {results[-1]}."
    left = results[-1] if results else terms[0]
    expression = f"{left} {terms[2 * done + 1]} {terms[2 * done + 2]}"
    return Reply(tool_calls=[("calculator", json.dumps({"expression": expression}))])


# The run.


def run(client: OpenAI, model: str, path: str) -> None:
    with rt.recording(path):
        for index, (task, (question, truth)) in enumerate(TASKS.items()):
            with rt.trajectory("solver", task=task, group="chain") as trajectory:
                answer = solve(client, model, question, stream=index % 2 == 1)
                trajectory.reward = float(number(answer) == truth)
        with rt.trajectory("coordinator", task="pair/1") as trajectory:
            solve(client, model, "What is 2 * 3 ?", stream=True)
            trajectory.reward = float(number(compare(client, model)) == 399.0)


def rows(path: str) -> list[tuple[str, ...]]:
    """One row of the table a trajectory, from what the file holds."""
    table: list[tuple[str, ...]] = []
    for trajectory in rt.read(path):
        steps = trajectory.steps
        failed = ", failed" if any(run.error for run in trajectory.tool_runs) else ""
        table.append(
            (
                ("└ " if trajectory.parent_id else "") + trajectory.name,
                trajectory.task.id if trajectory.task and trajectory.task.id else "",
                f"{sum(step.status == 'ok' for step in steps)}/{len(steps)}",
                str(sum(len(step.prompt_token_ids) for step in steps if step.prompt_token_ids is not None)),
                str(sum(len(step.completion_token_ids) for step in steps if step.completion_token_ids is not None)),
                " ".join(f"{len(row.token_ids)}/{int(row.loss_mask.sum())}" for row in trajectory.sequences())
                or "none",
                f"{len(trajectory.tool_runs)}{failed}",
                "" if trajectory.reward is None else f"{trajectory.reward:g}",
            )
        )
    return table


def first_model(client: OpenAI) -> str:
    served = client.models.list().data
    if not served:
        raise SystemExit(f"{client.base_url} lists no model: name one with --model")
    return served[0].id


HEADER = ("agent", "task", "steps", "prompt", "sampled", "row/trained", "tools", "reward")


def show(title: str, table: list[tuple[str, ...]]) -> None:
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(HEADER, *table, strict=True)]
        for row in (HEADER, *table):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in HEADER:
        grid.add_column(name, overflow="fold")
    for row in table:
        grid.add_row(*row)
    Console(width=None if os.isatty(1) else 80).print(grid)
    print("steps: ok/all; prompt, sampled and row/trained are counts of tokens.")


def show_conversation(path: str) -> None:
    """Prints the trajectory whose tool failed, as `rollout-trace show --tokens` does, and what to type next."""
    found = next(one for one in rt.read(path) if one.task and one.task.id == "chain/4")
    command = command_here()
    print(f"\n{command} show {path} chain/4 --tokens\n")
    try:
        found.show(tokens=True)
    except ImportError as error:
        print(error)
    print("\nNext, another one with its sub-agents, and all of them on a page in the browser:")
    print(f"  {command} show {path} pair/1 --tokens")
    print(f"  {command} view {path}")


def command_here() -> str:
    """What to type for `rollout-trace` in this shell, whose environment need not be active."""
    own, found = Path(sys.executable).with_name("rollout-trace"), shutil.which("rollout-trace")
    if not own.exists() or (found is not None and own.samefile(found)):
        return "rollout-trace"
    return os.path.relpath(own)


def make_room(path: str, *, overwrite: bool) -> None:
    """Sees to it that there is neither a file of this name, nor one of its notes."""
    there = [one for one in (path, path.removesuffix(".jsonl") + ".notes.jsonl") if os.path.exists(one)]
    if there and not overwrite:
        raise SystemExit(f"{there[0]} exists: name another file with --output, or delete this one with --overwrite.")
    for one in there:
        os.remove(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it an embedded one answers")
    parser.add_argument("--engine", help="the engine behind it, to be asked for token ids; auto where it is not given")
    parser.add_argument("--model", help="its name; the first that the server lists where it is not given")
    parser.add_argument("--output", default="demo.jsonl", help="the file to write (default: demo.jsonl)")
    parser.add_argument("--overwrite", action="store_true", help="delete the file, and its notes, where it exists")
    options = parser.parse_args()
    make_room(options.output, overwrite=options.overwrite)
    with ExitStack() as stack:
        server = None if options.base_url else stack.enter_context(ScriptedServer(script))
        client = OpenAI(
            base_url=options.base_url or (server.base_url if server else None),
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
        )
        rt.wrap_openai(stack.enter_context(client), engine=options.engine or ("auto" if options.base_url else "vllm"))
        model = options.model or (server.model if server else first_model(client))
        if options.base_url:
            print(rt.probe(client, model), end="\n\n")
        before = rt.stats()
        run(client, model, options.output)
        answered = None if server is None else sum(request.status is not None for request in server.requests)
    show(f"What {options.output} holds", rows(options.output))
    counted = rt.stats()
    calls, attempts = counted.calls - before.calls, counted.attempts - before.attempts
    print(f"{calls} calls, {attempts} HTTP exchanges recorded", end="")
    print("." if answered is None else f"; the server answered {answered}.")
    print(f"{os.path.getsize(options.output)} bytes in {options.output}.")
    show_conversation(options.output)


if __name__ == "__main__":
    main()
