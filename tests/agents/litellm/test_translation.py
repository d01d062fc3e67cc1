"""Programs that speak Messages or Responses, on an engine that gives ids on chat: litellm translates their calls."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.process.test_any_program import run

# Not imported here: without a network that takes ten seconds.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed"),
]

HEAD = """
def messages(*texts, **fields):
    said = [one if isinstance(one, dict) else {"role": "user", "content": one} for one in texts]
    tool = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
    body = {"model": "m", "max_tokens": 1000, "messages": said, "tools": [tool], "system": "You solve.", **fields}
    status, headers, content = ask(path=url.path.replace("/openai", "/anthropic") + "/messages?beta=true", body=body,
                                   **{"x-api-key": "sk-test-0123456789abcdef", "Authorization": ""})
    return status, content.decode()
def responses(*items, **fields):
    tools = [{"type": "function", "name": "Bash", "parameters": {"type": "object", "properties": {}}},
             {"type": "custom", "name": "exec"},
             {"type": "namespace", "name": "group", "tools": [
                 {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}]}]
    return ask(path=url.path + "/responses", body={"model": "m", "input": list(items), "tools": tools, **fields})
def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
"""
CALLS = [("Bash", '{"command": "ls"}'), ("Bash", '{"command": "exit 3"}')]


def started(folder: Path, server: ScriptedServer, program: str) -> Any:
    """Runs a program with ``--engine vllm``."""
    return run(folder, server, HEAD + program, "--engine", "vllm", ANTHROPIC_BASE_URL=server.url)


CONVERSATIONS = """
status, text = messages("solve it", stream=True)
found = events(text)
print(json.dumps([one for one in found if one["type"].startswith("content_block")]))
print(json.dumps([one["delta"] for one in found if one["type"] == "message_delta"]))
blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "well"}]
starts = [one["content_block"] for one in found if one["type"] == "content_block_start"]
calls = [{**one, "input": {"command": text}} for one, text in zip(starts[2:], ("ls", "exit 3"))]
results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "done"} for one in calls]
print(messages("solve it", {"role": "assistant", "content": blocks + calls}, {"role": "user", "content": results})[1])

said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "another"}]}
status, headers, content = responses(said, stream=True, store=False, instructions="You solve.")
found = events(content.decode())
items = [one["item"] for one in found if one["type"] == "response.output_item.done"]
print(json.dumps([one["type"] for one in found]))
print(json.dumps(items))
print(json.dumps(found[-1]["response"]["output"] == items))
outputs = [{"type": one["type"] + "_output", "call_id": one["call_id"], "output": "seen"} for one in items[1:]]
print(responses(said, *items, *outputs, store=False, instructions="You solve.")[2].decode())
"""


def test_answers_come_in_the_programs_protocol_and_have_ids(tmp_path: Path) -> None:
    calls = [CALLS[0], ("exec", '{"content": "text(1)"}'), ("group__spawn", "{}")]
    answers: list[Any] = [
        Reply("well", reasoning="hm", tool_calls=CALLS),
        "solved",
        Reply("good", tool_calls=calls),
        "seen",
    ]
    with ScriptedServer(answers) as server:
        done, (one,) = started(tmp_path, server, CONVERSATIONS)
        asked = [(record.path, record.json) for record in server.requests if record.method == "POST"]
    assert done.returncode == 0, done.stderr
    streamed, changed, whole, kinds, items, is_same, response = map(json.loads, done.stdout.splitlines())
    begun = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    assert [(block["type"], block.get("name")) for block in begun] == [
        ("thinking", None), ("text", None), ("tool_use", "Bash"), ("tool_use", "Bash")
    ]  # fmt: skip
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    inputs = [json.loads(delta["partial_json"]) for delta in deltas if delta["type"] == "input_json_delta"]
    assert inputs == [{"command": "ls"}, {"command": "exit 3"}]
    assert [event["index"] for event in streamed if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert [change["stop_reason"] for change in changed] == ["tool_use"]
    assert (whole["content"], whole["stop_reason"], whole["model"]) == (
        [{"type": "text", "text": "solved"}], "end_turn", "m"
    )  # fmt: skip
    assert (kinds[0], kinds[-1], is_same) == ("response.created", "response.completed", True)
    assert kinds.count("response.output_text.delta") == 1
    assert [(item["type"], item.get("name"), item.get("namespace")) for item in items] == [
        ("message", None, None), ("function_call", "Bash", None), ("custom_tool_call", "exec", None),
        ("function_call", "spawn", "group"),
    ]  # fmt: skip
    assert (json.loads(items[1]["arguments"]), items[2]["input"]) == ({"command": "ls"}, "text(1)")
    assert response["output"][0]["content"][0]["text"] == "seen"
    assert [path for path, _ in asked] == ["/v1/chat/completions"] * 4
    assert [bool(body.get("stream")) for _, body in asked] == [False] * 4
    assert asked[0][1]["max_tokens"] == 1000
    for step in one.steps:
        assert step.protocol == "openai.chat"
        assert len(step.completion_token_ids) == len(step.logprobs) > 0
        assert len(step.prompt_token_ids) > 0
    assert len(one.sequences()) == 2
    assert [tool.result for tool in one.tool_runs] == ["done"] * 2 + ["seen"] * 3
    assert done.stderr.count("are translated to chat") == 2
    assert "sk-test" not in (tmp_path / "rollouts.jsonl").read_text() + done.stderr


def test_what_the_engine_refuses_and_cuts_is_told_in_the_programs_protocol(tmp_path: Path) -> None:
    program = """
print(*messages("a", max_tokens=2_000_000))
print(messages("a")[0])
print(*messages("b"))
try:
    print(messages("c", stream=True))
except http.client.HTTPException as error:
    print(type(error).__name__)
print(responses({"role": "user", "content": "d"}, previous_response_id="resp_1")[0])
"""
    answers: list[Any] = [Fault(status=529), "after it", Fault(status=404), Fault(cut_after=0)]
    with ScriptedServer(answers) as server:
        done, (one,) = started(tmp_path, server, program)
        asked = [(record.path, record.json) for record in server.requests if record.method == "POST"]
    assert done.returncode == 0, done.stderr
    overloaded, after, bad, cut, own = done.stdout.splitlines()
    assert (overloaded[:3], after, bad[:3], own) == ("529", "200", "404", "404"), done.stderr
    assert json.loads(overloaded[4:])["error"]["type"] == "overloaded_error"
    assert json.loads(bad[4:])["error"]["type"] == "not_found_error"
    assert cut in ("RemoteDisconnected", "IncompleteRead")
    # Longer than the model's context: the server gives what is left of it.
    assert "max_tokens" not in asked[0][1]
    assert [path.rpartition("/")[2] for path, _ in asked] == ["completions"] * 4 + ["responses"]
    assert [step.status for step in one.steps] == ["error", "ok", "error", "error", "error"]
