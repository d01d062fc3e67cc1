"""What must not be on a disk is not in the journal, nor in what is recovered from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.record.call import Call, Failure
from rollout_trace.record.journal import Journal
from rollout_trace.record.redaction import Redactor
from rollout_trace.record.settings import Settings
from rollout_trace.record.state import state_of
from rollout_trace.testing import Fault, Reply, ScriptedServer, ToolCall
from tests.file.processes import run

from .journaled import ASKED, ask, died, files_of, journaled, track

KEY = "sk-live-1234567890abcdef"
SECRET = "4929 1188 0042"


def client_of(server: ScriptedServer) -> Any:
    return rt.wrap_openai(track(openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0)))


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in files_of(folder / "out.jsonl"))


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (Fault(status=401, body={"error": {"message": f"Incorrect API key: {KEY}", "type": "auth"}}), "hi"),
        (f"your key is {KEY}", "hi"),
        (Reply(f"your key is {KEY}"), f"what is {KEY}?"),
        (Reply(None, [ToolCall("login", f'{{"key": "{KEY}"}}')]), "hi"),
    ],
    ids=["error", "completion", "prompt", "tool call"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_keys_are_cut(script: Any, text: str, streamed: bool, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl", redactor=Redactor())
    with ScriptedServer(script) as server, journaled(journal, metadata={"key": KEY}):
        client = client_of(server)
        try:
            answer = ask(client, text, stream=streamed)
            list(answer if streamed else [])
        except openai.AuthenticationError:
            pass
        with rt.tool_run("login", arguments={"key": KEY}) as run:
            run.result = KEY
        ask_once_more(client)
        assert KEY.encode() not in bytes_of(tmp_path)
        died(journal)
    found = rt.recover(tmp_path / "out.jsonl", write=True)
    assert found.report.is_clean, str(found.report)
    assert len(found[0].steps) == 2
    if text != "hi":
        # Sent with the key, which a stream brings back in pieces.
        assert KEY.encode() not in (tmp_path / "out.jsonl").read_bytes()


def ask_once_more(client: Any) -> None:
    try:
        ask(client)
    except openai.AuthenticationError:
        pass


def test_rules_leave_no_raw_bytes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl", redactor=Redactor(re.compile(re.escape(SECRET))))
    with ScriptedServer(f"it is {SECRET}") as server, journaled(journal, metadata={"number": SECRET}) as trajectory:
        client = client_of(server)
        messages: list[Any] = [{"role": "user", "content": f"is it {SECRET}?"}]
        answer = client.chat.completions.create(messages=messages, **ASKED)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, messages[0]]
        list(client.chat.completions.create(messages=messages, stream=True, **ASKED))
        ask(client, "nothing to hide")
        with rt.tool_run("look", arguments={"number": SECRET}) as run:
            run.result = [SECRET]
        ids = [step.id for step in trajectory.steps]
        data = bytes_of(tmp_path)
        died(journal)
    assert SECRET.encode() not in data
    (one,) = rt.recover(tmp_path / "out.jsonl", write=True)
    assert [step.id for step in one.steps] == ids
    assert one.metadata == {"number": "[redacted]"}
    assert one.tool_runs[0].result == ["[redacted]"]
    assert all(step.completion_token_ids is None and not step.trainable for step in one.steps)
    assert one.steps[0].messages == [{"role": "user", "content": "is it [redacted]?"}]
    assert SECRET.encode() not in (tmp_path / "out.jsonl").read_bytes()


def test_rules_hold_for_failures_that_come_after_the_end(tmp_path: Path) -> None:
    """An exception may quote what the client could not read."""
    journal = Journal(tmp_path / "out.jsonl", redactor=Redactor(re.compile(re.escape(SECRET))))
    with ScriptedServer("fine") as server, journaled(journal) as trajectory:
        ask(client_of(server), "first")
        trajectory.metadata = {"any": "thing"}
        call = Call(Settings(lambda method, path: None), "openai.chat")
        assert call.log is None
        state = state_of(trajectory)
        assert state is not None
        assert state.log is not None
        state.log.add(call)
        call.attempt(b'{"messages": []}')
        call.end()
        call.failure = Failure.of(ValueError(f"cannot read {SECRET}"))
        call.end()
        journal.write_waiting()
        data = bytes_of(tmp_path)
        died(journal)
    assert data
    assert SECRET.encode() not in data


RECOVERY = """
import sys
import rollout_trace as rt
print(len(rt.recover(sys.argv[1], write=True)))
"""


def test_a_key_that_is_repeated_later_is_cut(tmp_path: Path) -> None:
    """The server keeps the conversation. Who recovers it does not have the key, to look for it."""

    def script(request: dict[str, Any]) -> str:
        return f"it was {KEY}" if request["messages"][-1]["content"] == "repeat it" else "fine"

    journal = Journal(tmp_path / "out.jsonl", redactor=Redactor())
    with ScriptedServer(script) as server, journaled(journal):
        client = client_of(server)
        ask(client, f"keep {KEY}")
        list(ask(client, "repeat it", stream=True))
        journal.write_waiting()
        died(journal)
    assert run(RECOVERY, tmp_path / "out.jsonl") == "1\n"
    (found,) = rt.read(tmp_path / "out.jsonl")
    assert len(found.steps) == 2
    assert KEY.encode() not in (tmp_path / "out.jsonl").read_bytes()
