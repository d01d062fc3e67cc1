"""Programs that load no recorder: their calls pass through a loopback server, and are recorded there."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.forwarding import Forwarding
from rollout_trace.clients.loopback.messages import RequestRecord
from rollout_trace.clients.loopback.openings import opening_of
from rollout_trace.clients.loopback.program_server import ProgramServer
from rollout_trace.clients.loopback.programs import Place, Start, codex_base, program_of
from rollout_trace.clients.loopback.trajectories import ProgramTrajectories
from rollout_trace.clients.loopback.watched import ClientGone
from rollout_trace.record.settings import Settings
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.wire.protocols import protocol_of_path

pytestmark = pytest.mark.processes

# Python with -I reads no PYTHONPATH: to the recorder it is as good as any other language.
ALONE = [sys.executable, "-I", "-c"]
ASK = """
import http.client, json, os, sys
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(method="POST", path=url.path + "/chat/completions", body=None, **headers):
    connection = http.client.HTTPConnection(url.hostname, url.port)
    given = {"content-type": "application/json", "Authorization": "Bearer sk-test-0123456789abcdef", **headers}
    connection.request(method, path, None if body is None else json.dumps(body), given)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()
def said(*texts, system="You solve.", tools=True, **fields):
    messages = [{"role": "system", "content": system}] * bool(system)
    messages += [one if isinstance(one, dict) else {"role": "user", "content": one} for one in texts]
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
    return {"model": "m", "messages": messages, **({"tools": [tool]} if tools else {}), **fields}
"""


def run(folder: Path, server: ScriptedServer, program: str, *options: str, **variables: str) -> Any:
    """Runs a program, recorded; how it ended, and its trajectories."""
    command = [sys.executable, "-m", "rollout_trace", "run", *options, "--", *ALONE, ASK + program]
    environ = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-test-0123456789abcdef"}
    done = subprocess.run(command, cwd=folder, env={**environ, **variables}, capture_output=True, text=True, timeout=60)
    path = folder / "rollouts.jsonl"
    return done, list(rt.read(path)) if path.exists() else []


CONVERSATION = """
first = json.loads(ask(body=said("solve it"))[2])["choices"][0]["message"]
# Of what a tool is asked for, but without tools: no sub-agent.
ask(body=said("look at it", system="You name conversations.", tools=False))
call, other = first["tool_calls"]
sub = json.loads(ask(body=said("look at it", system="You look."))[2])["choices"][0]["message"]
ask(body=said("look at it", sub, {"role": "user", "content": "and?"}, system="You look."))
results = [{"role": "tool", "tool_call_id": one["id"], "content": text} for one, text in ((call, "seen"), (other, "3"))]
print(ask(body=said("solve it", first, *results, stream=True))[2].decode())
"""


def script(request: Any) -> Any:
    messages = request["messages"]
    if messages[-1]["role"] == "tool":
        return "solved"
    if not request.get("tools"):
        return "A title"
    if "look" in messages[0]["content"]:
        return "seen"
    calls = [("agent", '{"prompt": "look at it", "agent": "looker"}'), ("run", '{"n": 3}')]
    return Reply("well", tool_calls=calls)


def test_calls_are_steps_and_sub_agents_children(tmp_path: Path) -> None:
    with ScriptedServer(script) as server:
        done, (parent, child) = run(tmp_path, server, CONVERSATION, "--name", "solver", "--task", "t")
        sent = [(one.method, one.path, one.status) for one in server.requests]
        streamed = server.requests[-1].response_body.decode()
    assert done.returncode == 0, done.stderr
    # What the program read is what the server sent, and what was sent on is what the program sent.
    assert done.stdout == f"{streamed}\n"
    assert sent == [("POST", "/v1/chat/completions", 200)] * 5
    assert (parent.name, parent.task.id, parent.status, child.name) == ("solver", "t", "completed", "looker")
    assert [step.completion.content for step in parent.steps] == ["well", "A title", "solved"]
    assert [step.trainable for step in parent.steps] == [True, False, True]
    assert parent.steps[1].metadata == {"auxiliary": True}
    assert [step.completion.content for step in child.steps] == ["seen", "seen"]
    assert (child.parent_id, child.parent_step_id) == (parent.id, parent.steps[0].id)
    assert [(one.name, one.result, one.step_id) for one in parent.tool_runs] == [
        ("agent", "seen", parent.steps[0].id),
        ("run", "3", parent.steps[0].id),
    ]
    assert "2 trajectories, 5 steps" in done.stderr
    assert "sk-test" not in (tmp_path / "rollouts.jsonl").read_text() + done.stderr


AGENTS = """
first = json.loads(ask(body=said("solve it"))[2])["choices"][0]["message"]
parts = ("look at the files of part 12", "look at the files of part 1")
for text in (*parts, "<now>12:00</now>\\n\\nlook", "see a", "see b"):
    ask(body=said(text, system="You look."))
# What the last one has begun.
ask(body=said("deeper", system="You look."))
results = [{"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in first["tool_calls"]]
# A fork goes on from the conversation: its calls have been emptied in it.
rules = "<fork-boilerplate>" + "You are a fork. " * 9 + "</fork-boilerplate>"
forked = {"role": "user", "content": rules + "\\n\\nDirective: look at the fork of it all"}
well = {"role": "assistant", "content": "well"}
ask(body=said("solve it", well, forked, well, "Begin."))
ask(body=said("solve it", well, forked, well, "Begin.", well, "and then?"))
ask(body=said("solve it", first, *results))
# Not the program's work, but its own.
ask(body=said("solve it", first, *results, "Keep it.", system="You are performing a managed memory dream."))
# What began the conversation is summed up, and it goes on.
ask(body=said("So far: `python -m pytest tests -x --quiet` failed, " + "and it was looked for what is wrong. " * 3))
"""


def calling_agents(request: Any) -> Any:
    last = request["messages"][-1]["content"]
    if last == "see b":
        return Reply("deeper", tool_calls=[("agent", '{"prompt": "deeper", "agent_type": "diver"}')])
    if last != "solve it":
        return "seen"
    asked: list[tuple[str, Any]] = [
        ("run", {"command": "python -m pytest tests -x --quiet"}),
        ("agent", {"prompt": "look at the files of part 1", "agent_type": "looker", "name": "one"}),
        ("agent", {"prompt": "look at the files of part 12", "agent_type": "looker", "name": "twelve"}),
        ("agent", {"prompt": "look", "agent_type": "short", "name": "look"}),
        ("agent", {"prompt": "look at the fork of it all", "subagent_type": "fork"}),
        ("write", {"old": "{{item}} {{item}}", "new": "<b>{{item}}</b>", "content": "{{item}}"}),
        ("swarm", {"description": "several", "prompt_template": "see {{item}}", "items": ["a", "b"]}),
    ]
    return Reply("well", tool_calls=[(name, json.dumps(arguments)) for name, arguments in asked])


def test_each_sub_agent_is_that_of_its_own_call(tmp_path: Path) -> None:
    with ScriptedServer(calling_agents) as server:
        done, found = run(tmp_path, server, AGENTS, "--cli", "qwen-code")
    (diver,) = (one for one in found if one.name == "diver")
    parent, *children = (one for one in found if one is not diver)
    assert [step.completion.content for step in parent.steps] == ["well", "seen", "seen", "seen"], done.stderr
    assert [step.metadata for step in parent.steps] == [None, None, {"auxiliary": True}, None]
    assert [step.trainable for step in parent.steps] == [True, True, False, True]
    asked = {(one.name, *(step.messages[-1]["content"].split()[-1] for step in one.steps)) for one in children}
    assert len(children) == 6
    several = {("several", "a"), ("several", "b"), ("fork", "Begin.", "then?")}
    assert asked == {("looker", "1"), ("looker", "12"), ("short", "look"), *several}
    assert {(one.parent_id, one.parent_step_id) for one in children} == {(parent.id, parent.steps[0].id)}
    (caller,) = (one for one in children if one.id == diver.parent_id)
    assert diver.parent_step_id == caller.steps[0].id
    assert caller.steps[0].messages[-1]["content"] == "see b"


SUMMED_UP = """
tool = {"name": "Bash", "input_schema": {"type": "object"}}
asked = "Reply with text only: a detailed summary of all, in a block <summary>."
first = {"role": "user", "content": "go on"}
body = {"model": "m", "max_tokens": 9, "tools": [tool], "messages": [first]}
path, session = urlsplit(os.environ["ANTHROPIC_BASE_URL"]).path + "/v1/messages", "0f-session"
folder = os.environ["CLAUDE_CONFIG_DIR"] + "/projects/here"
os.makedirs(folder)
open(f"{folder}/{session}.jsonl", "w").close()
for text in ("go on", asked, "and now"):
    body["messages"] = [first, {"role": "assistant", "content": "well"}, {"role": "user", "content": text}]
    ask(path=path, body=body, **{"X-Claude-Code-Session-Id": session})
"""


def test_a_call_that_sums_up_is_named_and_the_transcript_found(tmp_path: Path) -> None:
    with ScriptedServer("<summary>all of it</summary>") as server:
        own = {"ANTHROPIC_BASE_URL": server.url, "CLAUDE_CONFIG_DIR": str(tmp_path / "config")}
        done, (one,) = run(tmp_path, server, SUMMED_UP, "--cli", "claude-code", **own)
    assert [step.metadata for step in one.steps] == [None, {"compaction": True}, None], done.stderr
    assert all(step.trainable for step in one.steps)
    transcript = tmp_path / "config" / "projects" / "here" / "0f-session.jsonl"
    assert one.metadata == {"cli": "claude-code", "session_id": "0f-session", "transcript": str(transcript)}


def test_headers_pass_and_engine_fields_are_added_for_the_server_alone(tmp_path: Path) -> None:
    with ScriptedServer(Reply("hi")) as server:
        program = (
            "print(ask(body=said('x', stream=True), Accept='a', **{'X-Mine': 'b', 'Accept-Encoding': 'br, gzip'})[2])"
        )
        done, (one,) = run(tmp_path, server, program, "--engine", "vllm")
        (record,) = server.requests
    assert (record.headers["x-mine"], record.headers["accept"], record.headers["accept-encoding"]) == ("b", "a", "gzip")
    assert record.json["return_token_ids"] is True
    (step,) = one.steps
    assert step.completion_token_ids is not None
    assert len(step.logprobs) == len(step.completion_token_ids)
    assert "data: [DONE]" in done.stdout
    assert one.metadata is None or "cli" not in one.metadata


@pytest.mark.skipif(find_spec("litellm") is not None, reason="litellm is installed: tests/agents/litellm")
def test_calls_by_another_protocol_pass_without_ids_where_no_translator_is(tmp_path: Path) -> None:
    program = """
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
for _ in range(2):
    print(ask(path=urlsplit(os.environ["ANTHROPIC_BASE_URL"]).path + "/v1/messages", body=body)[2].decode())
"""
    with ScriptedServer("hi") as server:
        done, (one,) = run(tmp_path, server, program, "--engine", "vllm", ANTHROPIC_BASE_URL=server.url)
        assert [record.path for record in server.requests] == ["/v1/messages"] * 2
        assert done.stdout == "".join(f"{record.response_body.decode()}\n" for record in server.requests)
    assert [step.completion_token_ids for step in one.steps] == [None, None]
    assert done.stderr.count('pip install ".[clis]"') == 1


def test_a_password_in_the_address_is_sent_and_kept_nowhere(tmp_path: Path) -> None:
    program = """
print(ask(body=said("a"))[0])
connection = http.client.HTTPConnection(url.hostname, url.port)
connection.request("POST", url.path + "/chat/completions", json.dumps(said("b")), {"X-Api-Key": "k"})
print(connection.getresponse().status)
"""
    with ScriptedServer("hi") as server:
        address = server.base_url.replace("://", "://us%40er:pass-0123456789@")
        done, (one,) = run(tmp_path, server, program, OPENAI_BASE_URL=address)
        sent = [(record.headers["authorization"], record.headers["host"]) for record in server.requests]
    assert done.stdout.split() == ["200", "200"], done.stderr
    host = urlsplit(address).netloc.rpartition("@")[2]
    # The program's own comes before it.
    basic = f"Basic {b64encode(b'us@er:pass-0123456789').decode()}"
    assert sent == [("Bearer sk-test-0123456789abcdef", host), (basic, host)]
    assert len(one.steps) == 2
    kept = (tmp_path / "rollouts.jsonl").read_text() + done.stderr
    assert "pass-0123456789" not in kept
    assert basic.partition(" ")[2] not in kept


def test_failures_and_cuts_are_the_servers_own(tmp_path: Path) -> None:
    program = """
print(ask(body=said("a"))[0], ask(body=said("a"))[0])
try:
    print(ask(body=said("b", stream=True)))
except http.client.IncompleteRead as error:
    print(len(error.partial) > 0)
"""
    answers: list[str | Fault] = [Fault(status=529), "after it", Fault("cut before its end", cut_after=3)]
    with ScriptedServer(answers) as server:
        done, (one,) = run(tmp_path, server, program)
    assert done.stdout.split() == ["529", "200", "True"], done.stderr
    assert [[attempt.status for attempt in step.attempts] for step in one.steps] == [[529, 200], [200]]
    assert [step.status for step in one.steps] == ["ok", "error"]


def test_a_request_that_is_given_up_is_cancelled_and_a_stream_abandoned(tmp_path: Path) -> None:
    program = """
import socket
connection = http.client.HTTPConnection(url.hostname, url.port, timeout=3)
try:
    connection.request("POST", url.path + "/chat/completions", json.dumps(said("a")))
    connection.getresponse()
except TimeoutError:
    connection.close()
connection = http.client.HTTPConnection(url.hostname, url.port)
connection.request("POST", url.path + "/chat/completions", json.dumps(said("b", stream=True)))
answer = connection.getresponse()
answer.read1()
answer.close()
connection.close()
print(ask(body=said("c"))[0])
"""
    with ScriptedServer([Fault(stall=True), Fault("it is left", stall_after=2), "fine"]) as server:
        done, (one,) = run(tmp_path, server, program)
    assert done.stdout.split() == ["200"], done.stderr
    assert [step.status for step in one.steps] == ["cancelled", "abandoned", "ok"]
    assert one.steps[1].error is None


REFUSED = """
body, inside = said("x"), url.path.split("/", 2)[2]
host = f"{url.hostname}:{url.port}"
for status, headers, content in (
    ask(path=f"/{inside}/chat/completions", body=body),
    ask(path=f"/wrong/{inside}/chat/completions", body=body),
    ask(body=body, Host="evil.example"),
    ask(body=body, Origin="http://evil.example"),
    ask("OPTIONS", Origin="http://evil.example", **{"Access-Control-Request-Method": "POST"}),
    ask(body=body, **{"Sec-Fetch-Site": "cross-site"}),
    ask("GET", path=url.path + "/responses", Upgrade="websocket", Connection="Upgrade"),
    ask(body=body),
    ask("HEAD", path=url.path + "/models"),
):
    print(status, any(name.lower().startswith("access-control") for name in headers))
"""


def test_nobody_else_can_use_the_server(tmp_path: Path) -> None:
    with ScriptedServer("hi") as server:
        done, (one,) = run(tmp_path, server, REFUSED)
        asked = [(record.method, record.path) for record in server.requests]
    expected = ["404", "404", "403", "403", "403", "403", "426", "200", "200"]
    assert [line.split()[0] for line in done.stdout.splitlines()[:8]] == expected[:8], done.stderr
    assert "True" not in done.stdout
    assert asked == [("POST", "/v1/chat/completions"), ("HEAD", "/v1/models")]
    assert len(one.steps) == 1


def test_a_request_of_nobody_is_refused_before_its_body() -> None:
    trajectories = ProgramTrajectories(lambda: None)
    with ProgramServer(["x"], {}, trajectories, lambda: Settings(protocol_of_path, is_http=True)) as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port or 0), timeout=20) as client:
            client.sendall(f"POST /wrong/x HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 9\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in answer


def test_a_server_that_does_not_read_is_left_when_ours_closes() -> None:
    closing, ended = threading.Event(), threading.Event()
    here, there = socket.socketpair()

    def send() -> None:
        record = RequestRecord(0, 0, "POST", "/", "", {}, bytes(64 << 20), socket=here)
        with pytest.raises(ClientGone):
            Forwarding().send(f"http://127.0.0.1:{model.getsockname()[1]}/", record, closing)
        ended.set()

    with here, there, socket.create_server(("127.0.0.1", 0)) as model:
        threading.Thread(target=send, daemon=True).start()
        with model.accept()[0]:
            closing.set()
            assert ended.wait(20)


SDK = "import openai; openai.OpenAI().chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'hi'}])"


def test_a_python_child_is_recorded_in_its_own_process_alone(tmp_path: Path) -> None:
    program = f"""
import subprocess
ask(body=said("from here"))
subprocess.run([{sys.executable!r}, "-c", {SDK + "; import os; print(os.environ['OPENAI_BASE_URL'])"!r}])
"""
    with ScriptedServer("hi") as server:
        done, found = run(tmp_path, server, program)
        assert done.stdout.strip() == server.base_url, done.stderr
        assert len(server.requests) == 2
    assert sorted(len(one.steps) for one in found) == [1, 1]
    assert len({one.episode_id for one in found}) == 1


def test_a_program_of_a_python_child_is_recorded_by_the_server(tmp_path: Path) -> None:
    inner = [*ALONE, ASK + "ask(body=said('deeper'))"]
    child = f"{SDK}; import subprocess; subprocess.run({inner!r})"
    with ScriptedServer("hi") as server:
        done, found = run(tmp_path, server, f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}])")
        assert len(server.requests) == 2
    assert sorted(step.messages[-1]["content"] for one in found for step in one.steps) == ["deeper", "hi"], done.stderr


def test_a_program_without_calls_is_told_what_can_be_done(tmp_path: Path) -> None:
    with ScriptedServer("hi") as server:
        done, found = run(tmp_path, server, "sys.exit(3)")
    assert (done.returncode, found) == (3, [])
    text = " ".join(done.stderr.split())
    assert "nothing was recorded" in text
    assert "--cli" in text


def test_an_unknown_cli_is_a_mistake(tmp_path: Path) -> None:
    with ScriptedServer("hi") as server:
        done, _ = run(tmp_path, server, "", "--cli", "cloud")
    assert done.returncode == 2
    assert "unknown program 'cloud'. Known programs: claude-code, codex" in done.stderr


# rt.run_program

SEVERAL = "number = sys.argv[1]\nfirst = ask(body=said('task ' + number))\nask(body=said('task ' + number, 'more'))"
HANGING = """
if number == '2':
    import time
    print(os.getpid(), file=open('pid', 'w'), flush=True)
    time.sleep(600)
"""
KILLED = """
if number == '1':
    os.kill(os.getpid(), 9)
"""


def test_rollouts_are_programs_each_with_its_own_trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: dict[str, Path] = {}

    async def agent(task: Any, rollout: Any) -> int:
        folders[task] = Path(rollout.folder)
        command = [*ALONE, ASK + SEVERAL + HANGING + KILLED, task]
        return (await rt.run_program(command, cwd=rollout.folder)).returncode

    with ScriptedServer(lambda request: f"re {request['messages'][1]['content']}") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        output = tmp_path / "out.jsonl"
        summary = rt.collect(agent, list("012345"), output=output, concurrency=6, timeout=20, progress=False)
        assert len(server.requests) == 12
    found = list(rt.read(output))
    assert len(found) == 6
    for one in found:
        assert one.task is not None
        assert {step.completion and step.completion.content for step in one.steps} == {f"re task {one.task.id}"}
        assert len(one.steps) == 2
    assert sorted(one.status for one in found) == ["completed"] * 5 + ["timeout"], summary
    with pytest.raises(ProcessLookupError):
        os.kill(int((folders["2"] / "pid").read_text()), 0)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no groups of processes")
def test_what_a_program_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    with rt.recording(tmp_path / "out.jsonl"):
        done = asyncio.run(asyncio.wait_for(rt.run_program(["sh", "-c", "sleep 600 & echo hi"]), 20))
    assert (done.returncode, done.stdout) == (0, "hi\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_program_that_is_cancelled_twice_is_ended_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "url"
    os.mkfifo(pipe)

    async def twice() -> str:
        running = asyncio.create_task(
            rt.run_program(["sh", "-c", "trap '' TERM; echo $OPENAI_BASE_URL > url; sleep 600"], cwd=tmp_path)
        )
        url = await asyncio.to_thread(pipe.read_text)
        for _ in range(2):
            # What it has begun goes on until it waits for something outside.
            for _ in range(50):
                await asyncio.sleep(0)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return url

    with rt.recording(tmp_path / "out.jsonl"):
        place = urlsplit(asyncio.run(twice()))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port or 0), timeout=20)


def test_a_program_outside_of_every_trajectory_opens_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer("hi") as server, rt.recording(tmp_path / "out.jsonl"):
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        done = asyncio.run(
            rt.run_program([*ALONE, ASK + "print(ask(body=said('x'))[0], sys.stdin.read())"], input="in")
        )
    assert done.stdout == "200 in\n"
    (one,) = rt.read(tmp_path / "out.jsonl")
    assert (one.name, len(one.steps)) == (os.path.basename(sys.executable), 1)


class Raising(logging.Handler):
    """A user's handler that cannot even be called."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is full")


class Gone(dict[str, Any]):
    """A user's metadata, from a store that is gone."""

    def keys(self) -> Any:
        raise OSError("the store is gone")

    __iter__ = keys


def test_where_the_recorder_fails_the_requests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "print(ask(body=said('x'))[2].decode(), ask(body=said('y', stream=True))[2].decode())"
    handler, logger = Raising(), logging.getLogger("rollout_trace")
    failures = rt.stats().recorder_errors
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.addHandler(handler)
    try:
        with ScriptedServer("hi") as server, rt.recording(tmp_path / "out.jsonl"), rt.trajectory() as trajectory:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            # The facts of the program cannot be put beside it: whose call the first one is remains unknown.
            trajectory.metadata = Gone(kept="elsewhere")
            done = asyncio.run(rt.run_program([*ALONE, ASK + program]))
            trajectory.metadata = None
            bodies = [record.response_body.decode() for record in server.requests]
    finally:
        logger.removeHandler(handler)
    assert (done.returncode, done.stdout) == (0, f"{' '.join(bodies)}\n")
    assert len(bodies) == 2
    assert rt.stats().recorder_errors > failures
    # What came after the failure is recorded.
    assert [step.messages and step.messages[-1]["content"] for step in trajectory.steps] == ["y"]


def test_a_command_that_is_none_raises() -> None:
    commands: tuple[Any, ...] = ([], "claude -p hi")
    for command in commands:
        with pytest.raises(ValueError, match="expected a list with a program and its arguments"):
            asyncio.run(rt.run_program(command))


# What is read of requests, and of programs


@pytest.mark.parametrize(
    ("protocol", "body", "texts"),
    [
        ("anthropic.messages", {"system": [{"type": "text", "text": "S"}], "messages": [
            {"role": "user", "content": [{"text": "<system-reminder>x"}, {"text": "U"}]},
            {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]}, ("U",)),
        ("openai.responses", {"instructions": "S", "input": [
            {"role": "developer", "content": "D"}, {"role": "user", "content": [{"type": "input_text", "text": "U"}]},
            {"type": "function_call", "name": "f"}]}, ("U",)),
        ("openai.responses", {"input": "U"}, ("U",)),
        ("google.generate_content", {"systemInstruction": {"parts": [{"text": "S"}]}, "contents": [
            {"role": "user", "parts": [{"text": "U"}]}, {"role": "model", "parts": [{"text": "A"}]}]}, ("U",)),
    ],
)  # fmt: skip
def test_what_a_conversation_begins_with(protocol: str, body: Any, texts: tuple[str, ...]) -> None:
    first = opening_of(protocol, json.dumps(body).encode())
    assert first is not None
    assert (first.texts, first.has_tools) == (texts, False)
    other = json.loads(json.dumps(body).replace('"U"', '"W"'))
    changed = opening_of(protocol, json.dumps(other).encode())
    assert changed is not None
    assert changed.key != first.key


def test_a_body_that_is_none_has_no_opening() -> None:
    assert opening_of("openai.chat", b'{"messages": [') is None


@pytest.mark.parametrize(
    ("words", "config", "headers", "expected"),
    [
        ([], "", {}, "https://api.openai.com/v1"),
        ([], "", {"chatgpt-account-id": "a"}, "https://chatgpt.com/backend-api/codex"),
        (['openai_base_url="http://a/v1"'], 'openai_base_url = "http://b"', {}, "http://a/v1"),
        ([], 'openai_base_url = "http://b"\n[x]\ny = 1', {}, "http://b"),
        (
            ['model_provider="p"', 'model_providers.p={name="p",base_url="http://c/v1",env_key="K"}'],
            "",
            {},
            "http://c/v1",
        ),
        ([], 'model_provider = "p"\n[model_providers.p]\nname = "p"\nbase_url = "http://d"', {}, "http://d"),
        ([], "model_provider = 'p'\n[model_providers.p]\nbase_url = 'http://e'", {}, "http://e"),
        (["-cmodel_provider=p"], "[model_providers]\np = { base_url = 'http://f' }", {}, "http://f"),
    ],
)
def test_where_codex_was_going(tmp_path: Path, words: Any, config: str, headers: Any, expected: str) -> None:
    (tmp_path / "config.toml").write_text(config)
    assert codex_base(["codex", *words], {"CODEX_HOME": str(tmp_path)}, headers) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["codex", "exec", "-p", "b"], "http://b"),
        (["codex", "-pb", "exec"], "http://b"),
        (["codex", "exec", "--profile=b"], "http://b"),
        (["codex", "exec", "--profile", "b", "-c", 'model_provider="a"'], "http://a"),
        (["npx", "-p", "@openai/codex", "codex", "exec", "--", "-p", "b"], "http://a"),
        (["codex", "exec", "-p"], "http://a"),
        # As releases before 0.171 have them.
        (["codex", "-p", "old"], "http://b"),
        (["codex", "-c", 'profile="old"'], "http://b"),
    ],
)
def test_where_codex_was_going_by_its_profile(tmp_path: Path, command: list[str], expected: str) -> None:
    providers = "".join(f"[model_providers.{one}]\nbase_url = 'http://{one}'\n" for one in "ab")
    old = "[profiles.old]\nmodel_provider = 'b'\n"
    (tmp_path / "config.toml").write_text(f"model_provider = 'a'\n{providers}{old}")
    (tmp_path / "b.config.toml").write_text("model_provider = 'b'")
    assert codex_base(command, {"CODEX_HOME": str(tmp_path)}, {}) == expected


def test_arguments_have_no_secret(tmp_path: Path) -> None:
    codex = program_of(["codex"])
    assert codex is not None
    assert codex.start is not None
    place = Place("http://127.0.0.1:1", "http://127.0.0.1:1/secret", tmp_path)
    for config in ("", 'model_provider = "p"'):
        (tmp_path / "config.toml").write_text(config)
        found = codex.start(Start(["codex", "exec", "x"], {}), place, {"CODEX_HOME": str(tmp_path)})
        assert (found.command[0], found.command[-2:]) == ("codex", ["exec", "x"])
        launched = codex.start(Start(["npx", "-y", "@openai/codex@0.171.0", "exec"], {}), place, {})
        assert launched.command[:4] == ["npx", "-y", "@openai/codex@0.171.0", "-c"]
        words = ["npx", "-p", "@openai/codex", "codex"]
        assert codex.start(Start([*words, "exec"], {}), place, {}).command[:5] == [*words, "-c"]
        assert "http://127.0.0.1:1/codex" in " ".join(found.command)
        assert "secret" not in " ".join(found.command).replace("x-rollout-trace-secret", "").replace("_SECRET", "")


def test_codex_keeps_a_configuration_that_is_not_understood(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.toml").write_text("model_provider = 'p")
    codex = program_of(["codex"])
    assert codex is not None
    assert codex.start is not None
    start = Start(["codex", "exec", "x"], {})
    place = Place("http://127.0.0.1:1", "http://127.0.0.1:1/secret", tmp_path)
    assert codex.start(start, place, {"CODEX_HOME": str(tmp_path)}) == start
    assert "Codex is not recorded: its config.toml" in caplog.text


PI_MODELS = """{
  // Two servers, "// of which" one has a model elsewhere.
  "providers": {
    "my own": {"baseUrl": "%s", "apiKey": "sk-pi-0123456789", "models": [{"id": "a, }"},]},
    "two": {"baseUrl": "http://two.example", "models": [{"id": "b", "baseUrl": "http://three.example"}],},
  },
}"""


def test_pi_is_led_by_an_extension_and_keeps_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "agent"
    (home / "sessions").mkdir(parents=True)
    program = """
home = os.environ["PI_CODING_AGENT_DIR"]
script = open(home + "/extensions/rollout-trace.js").read()
led = json.loads(script[script.index("{") : script.index("};") + 1])
url = urlsplit(led["my own"])
for name in ("sessions/s.jsonl", "auth.json", "extensions/mine.js"):
    open(f"{home}/{name}", "w").write("x")
print(ask(body=said("x"))[0], oct(os.stat(home).st_mode & 0o777), ",".join(led).replace(" ", "_"))
print(os.path.realpath(home + "/models.json"))
"""
    with ScriptedServer("hi") as server:
        models = PI_MODELS % server.base_url
        (home / "models.json").write_text(models)
        monkeypatch.setenv("PI_CODING_AGENT_DIR", str(home))
        done, (one,) = run(tmp_path, server, program, "--cli", "pi")
        assert [record.path for record in server.requests] == ["/v1/chat/completions"]
    # The file with its keys is the only one.
    words = ["200", "0o700", "anthropic,openai,my_own", str(home / "models.json")]
    assert done.stdout.split() == words, done.stderr
    assert len(one.steps) == 1
    made = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert made == {"auth.json", "models.json", "sessions/s.jsonl", "extensions/mine.js"}
    assert (home / "models.json").read_text() == models


def test_pi_with_a_relative_folder_and_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pi = program_of(["pi"])
    assert pi is not None
    assert pi.start is not None
    assert pi.end is not None
    (home := tmp_path / "agent").mkdir()
    (home / "auth.json").write_text("x")
    monkeypatch.chdir(tmp_path)
    homes: list[dict[str, str]] = [{"PI_CODING_AGENT_DIR": "agent"}, {"HOME": str(tmp_path / "new")}]
    for at, environ in enumerate(homes):
        (folder := tmp_path / str(at)).mkdir()
        pi.start(Start(["pi"], {}), Place("http://127.0.0.1:1", "http://127.0.0.1:1/secret", folder), environ)
        assert at or (folder / "auth.json").read_text() == "x"
        pi.end(folder, environ)
        assert not (tmp_path / "new").exists()
    # The first sessions of two that ran at once.
    for name in "ab":
        (made := tmp_path / name / "sessions").mkdir(parents=True)
        (tmp_path / name / "extensions").mkdir()
        (made / f"{name}.jsonl").write_text("x")
        pi.end(tmp_path / name, homes[1])
    sessions = tmp_path / "new" / ".pi" / "agent" / "sessions"
    assert sorted(one.name for one in sessions.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_programs_are_known_by_their_names() -> None:
    names = {one: program_of([f"/usr/bin/{one}"]) for one in ("claude", "codex", "sh")}
    assert {one: None if found is None else found.name for one, found in names.items()} == {
        "claude": "claude-code", "codex": "codex", "sh": None,
    }  # fmt: skip
