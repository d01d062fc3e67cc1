"""What the model answers where a framework has a dialogue of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollout_trace.testing import Reply, RequestRecord, ToolCall
from tests.agents.script import ADDEND, final, has_result, numbers, tool_result


def final_answer_tool(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """smolagents: the answer is given with the tool `final_answer`."""
    number = numbers(record)
    if has_result(record):
        return _calls("final_answer", answer=final(number))
    return _calls("add", a=number, b=ADDEND)


def shell(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """mini-swe-agent: the sum is taken in a shell, and the answer is what the last command prints."""
    number = numbers(record)
    if has_result(record):
        return _calls("bash", command=f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{final(number)}'")
    return _calls("bash", command=f"echo '{tool_result(number)}'")


def structured(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """instructor: each answer is an object of the class that is asked for."""
    number = numbers(record)
    if has_result(record):
        return _calls("Answer", text=final(number))
    return _calls("Add", a=number, b=ADDEND)


def react(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """dspy: the tool, then `finish`, then the answer; each in fields that have headers."""
    number = numbers(record)
    if "next_tool_name" not in str(request["messages"][0]):
        return _fields(reasoning="I have the sum.", answer=final(number))
    if has_result(record):
        return _fields(next_thought="I am done.", next_tool_name="finish", next_tool_args="{}")
    arguments = json.dumps({"a": number, "b": ADDEND})
    return _fields(next_thought="I have to add.", next_tool_name="add", next_tool_args=arguments)


def _calls(name: str, **arguments: Any) -> Reply:
    return Reply(tool_calls=[ToolCall(name, json.dumps(arguments))])


def _fields(**fields: str) -> Reply:
    return Reply("\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in {**fields, "completed": ""}.items()))


def json_tools(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """litellm's `ollama/`: tools are described in the prompt, and called in an answer that is JSON."""
    number = numbers(record)
    if has_result(record):
        return Reply(json.dumps({"answer": final(number)}))
    return Reply(json.dumps({"name": "add", "arguments": {"a": number, "b": ADDEND}}))


def typed(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """outlines: the numbers as JSON, in the type that is asked for; then the answer."""
    number = numbers(record)
    if has_result(record):
        return Reply(final(number))
    return Reply(json.dumps({"a": number, "b": ADDEND}))


def terms(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """guidance: the terms, then the answer. Its tools need their arguments with their names, which vLLM sends later."""
    number = numbers(record)
    return Reply(final(number) if has_result(record) else f"{number} + {ADDEND}")


def listing(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """nanobot: a file is read with a tool of its own."""
    number = numbers(record)
    if has_result(record):
        return Reply(final(number))
    return _calls("read_file", path="sum.txt")


def qwen(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """Qwen-Agent: a call in the form that its prompt describes."""
    number = numbers(record)
    if has_result(record):
        return Reply(final(number))
    call = json.dumps({"name": "add", "arguments": {"a": number, "b": ADDEND}})
    return Reply(f"<tool_call>\n{call}\n</tool_call>")


def whole_file(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """aider: the terms are written into a file, and then the answer is given."""
    number = numbers(record)
    return Reply(final(number) if has_result(record) else f"sum.txt\n```\n{number} + {ADDEND}\n```")


def items(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """BeeAI: a call of a tool, and of `final_answer`, is JSON in the type that is asked for."""
    number = numbers(record)
    if has_result(record):
        called = {"name": "final_answer", "parameters": {"response": final(number)}}
    else:
        called = {"name": "add", "parameters": {"a": number, "b": ADDEND}}
    return Reply(json.dumps({"item": called}))
