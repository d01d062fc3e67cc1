"""What Claude Code is asked, and what the model answers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.testing.script import Answer

from .installed import Place

VARIABLES = {
    "ANTHROPIC_API_KEY": "none",
    "IS_SANDBOX": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
_ERRORS = {400: ("invalid_request_error", "No such thing"), 529: ("overloaded_error", "Overloaded")}


def _fault(status: int) -> Fault:
    kind, message = _ERRORS[status]
    return Fault(status=status, body={"type": "error", "error": {"type": kind, "message": message}})


def script(request: Mapping[str, Any]) -> Answer:
    """The model: two tools of which one fails, two sub-agents, then an answer to each prompt."""
    said, last = json.dumps(request["messages"]), json.dumps(request["messages"][-3:])
    names = {tool["name"] for tool in request.get("tools") or ()}
    done = said.count('"tool_result"')
    if "a detailed summary" in last:
        return "<summary>It was listed.</summary>"
    if "SUBTASK" in json.dumps(request["messages"][:1]):
        return "seen" if done else Reply("looking", tool_calls=[_call("Bash", command="cat a.txt", description="x")])
    if "ASK BADLY" in last:
        return _fault(400)
    if "CUT IT" in last:
        return [Fault("an answer that is cut before its end", cut_after=3), "whole"]
    if "ASK AGAIN" in last:
        return [_fault(529), Reply("after a retry", reasoning="again")]
    for word in (one for one in ("RESUMED", "FORKED", "COMPACTED", "<task-notification>") if one in last):
        return f"an answer to {word}"
    agent = "Agent" if "Agent" in names else "Task"
    if done == 0:
        calls = (_call("Bash", command="ls", description="x"), _call("Bash", command="exit 3", description="y"))
        return Reply("listing", reasoning="both", tool_calls=calls)
    if done == 2:
        kind = "general-purpose"
        asked = [{"description": one, "prompt": f"SUBTASK {one}", "subagent_type": kind} for one in ("one", "two")]
        return Reply(tool_calls=[_call(agent, **one) for one in asked])
    if done == 4:
        odd = {"file_path": "b.json", "content": '{"cache_control": 1}', "cache_control": {"x": 1}}
        return Reply("é 😀", tool_calls=[_call("Write", **odd)])
    return "all done"


def _call(name: str, **arguments: Any) -> tuple[str, str]:
    return name, json.dumps(arguments, separators=(",", ":"))


def run(binary: Path, place: Place, server: ScriptedServer) -> Path:
    """Runs sessions with all that can happen to one; the folder of their transcripts."""

    def ask(prompt: str, *options: str) -> str:
        options = ("--dangerously-skip-permissions", "--output-format", "json", "-p", prompt, *options)
        done = place.run(str(binary), *options, ANTHROPIC_BASE_URL=server.url, **VARIABLES)
        return str(json.loads(done.stdout)["session_id"])

    session = ask("list it")
    ask("RESUMED", "--resume", session)
    ask("FORKED", "--resume", session, "--fork-session")
    ask("ASK AGAIN", "--resume", session)
    ask("CUT IT", "--resume", session)
    ask("/compact", "--resume", session)
    ask("COMPACTED", "--resume", session)
    ask("ASK BADLY")
    return place.home / ".claude" / "projects"
