"""What Codex is asked, and a server that answers it with items: custom tools, namespaces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollout_trace.clients.loopback.messages import Response, json_bytes, json_response
from rollout_trace.testing import LoopbackServer, RequestRecord

from .installed import Place

Item = dict[str, Any]
OWN_MODEL = "gpt-6.2-sol"
"""One of the program's own, which gets its tools as an item; any other name gets the classic ones."""


class ItemServer(LoopbackServer):
    """A server of the Responses API that answers with the items that a function gives, or with a status."""

    def __init__(self, script: Callable[[Any, RequestRecord], list[Item] | int]) -> None:
        super().__init__()
        self._script = script

    def answer(self, record: RequestRecord) -> Response:
        """Answers a request (called by the server)."""
        if not record.path.endswith("/responses") or record.method != "POST":
            return json_response(426 if record.path.endswith("/responses") else 404, {"error": {"message": "no"}})
        made = self._script(record.json, record)
        if isinstance(made, int):
            return json_response(made, {"error": {"message": "no such thing", "type": "invalid_request_error"}})
        events = "".join(_events(made, record.index))
        return Response(200, [("content-type", "text/event-stream")], [events.encode()])


def _events(items: list[Item], number: int) -> Iterator[str]:
    head = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": [], "model": "scripted"}
    usage: Item = {"input_tokens": 100 + number, "output_tokens": 7, "total_tokens": 107 + number}
    usage |= {"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 0}}
    values: list[Item] = [{"type": "response.created", "response": head}]
    for at, item in enumerate(items):
        named = {"id": f"item_{number}_{at}", "status": "completed", **item}
        values.append({"type": "response.output_item.added", "output_index": at, "item": named})
        values.append({"type": "response.output_item.done", "output_index": at, "item": named})
        items[at] = named
    done = {**head, "status": "completed", "output": items, "usage": usage}
    values.append({"type": "response.completed", "response": done})
    for at, value in enumerate(values):
        data = json_bytes({"sequence_number": at, **value}).decode()
        yield f"event: {value['type']}\ndata: {data}\n\n"


def said(text: str) -> Item:
    """A message of the model."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


class Model:
    """Two tools of which one fails, two sub-agents, then an answer to each prompt."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, request: Any, record: RequestRecord) -> list[Item] | int:
        """The items of an answer, or a status."""
        items = request["input"]
        last = json.dumps(items[-2:])
        if '"request_kind":"compaction"' in record.headers.get("x-codex-turn-metadata", "").replace(" ", ""):
            return [said("It was listed.")]
        if "ASK BADLY" in last:
            return 400
        if "ASK AGAIN" in last:
            self._calls += 1
            return 503 if self._calls == 1 else [said("after a retry")]
        for word in (one for one in ("RESUMED", "FORKED", "COMPACTED") if one in last):
            return [said(f"an answer to {word}")]
        is_own = any(one.get("type") == "additional_tools" for one in items)
        done = sum(str(one.get("type")).endswith("_output") for one in items)
        if self._is_child(items):
            return (
                [said("seen")]
                if "CHILD LOOKS" in json.dumps(items)
                else [said("CHILD LOOKS"), _shell("cat a.txt", is_own)]
            )
        if done == 0:
            thought = {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "both"}],
                "encrypted_content": "e",
            }
            return [thought, said("listing"), _shell("ls", is_own), _shell("exit 3", is_own)]
        if done == 2:
            return [_spawn(name, is_own) for name in ("one", "two")]
        running = _running(items)
        if json.dumps(items).count(r"Type: FINAL_ANSWER\nTask") < 2 if is_own else running:
            return [_wait(running, is_own)]
        return [said("all done")]

    def _is_child(self, items: list[Item]) -> bool:
        of_user = json.dumps([one for one in items if one.get("role") == "user" or one.get("type") == "agent_message"])
        return "SUBTASK" in of_user


_count = iter(range(10**6))


def _call(name: str, namespace: str | None = None, **arguments: Any) -> Item:
    item = {"type": "function_call", "call_id": f"call_{next(_count)}", "name": name}
    return {**item, "arguments": json.dumps(arguments), **({} if namespace is None else {"namespace": namespace})}


def _shell(command: str, is_own: bool) -> Item:
    if not is_own:
        return _call("exec_command", cmd=command)
    script = f"text(JSON.stringify(await tools.exec_command({json.dumps({'cmd': command})})))"
    return {"type": "custom_tool_call", "call_id": f"call_{next(_count)}", "name": "exec", "input": script}


def _spawn(name: str, is_own: bool) -> Item:
    if is_own:
        return _call("spawn_agent", "collaboration", message=f"SUBTASK {name}", task_name=name)
    return _call("spawn_agent", "multi_agent_v1", message=f"SUBTASK {name}")


def _wait(running: list[str], is_own: bool) -> Item:
    if is_own:
        return _call("wait_agent", "collaboration", timeout_ms=10_000)
    return _call("wait_agent", "multi_agent_v1", targets=running, timeout_ms=10_000)


def _running(items: list[Item]) -> list[str]:
    """The classic agents that were begun, and of which neither a result nor a notice says that they are done."""
    said = json.dumps(items)
    agents = dict.fromkeys(re.findall(r'agent_id\\": ?\\"([0-9a-f-]{36})', said))
    ended = re.findall(r'"([0-9a-f-]{36})\\"(?:|, ?\\"status\\"): ?\{\\"completed', said)
    return [one for one in agents if one not in ended]


def run(binary: Path, place: Place, server: LoopbackServer, model: str) -> Path:
    """Runs sessions with all that can happen to one; the folder of their files."""
    provider = f'{{name="X",base_url="{server.base_url}",env_key="OPENAI_API_KEY",wire_api="responses"}}'
    own: tuple[str, ...] = (
        "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check",
        "-c",
        f"model_providers.X={provider}",
    )
    own += ("-c", 'model_provider="X"', "-c", f'model="{model}"')
    (place.home / ".codex").mkdir()

    def ask(*words: str, options: tuple[str, ...] = ()) -> str:
        command = words[:-2] if len(words) > 1 else ()
        done = place.run(str(binary), "exec", *command, *own, *options, *words[len(command) :], OPENAI_API_KEY="none")
        found = re.search(r"session id: ([0-9a-f-]+)", done.stderr + done.stdout)
        assert found is not None, done.stderr
        return found[1]

    session = ask("list it")
    ask("resume", session, "RESUMED")
    ask("fork", session, "FORKED")
    ask("resume", session, "ASK AGAIN")
    ask("resume", session, "COMPACTED", options=("-c", "model_auto_compact_token_limit=50"))
    ask("ASK BADLY")
    return place.home / ".codex" / "sessions"
