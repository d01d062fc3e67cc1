"""The keys of the process's clients are in nothing that is recorded, however they come back."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anthropic
import httpx
import openai
import pytest
import zstandard

import rollout_trace as rt
from rollout_trace import credentials, guard
from rollout_trace.clients.httpx import wrap_httpx
from rollout_trace.data.model import ErrorInfo, Step
from rollout_trace.data.redact import change_value
from rollout_trace.integration import AgentFrame, ModelFrame
from rollout_trace.record.redaction import cut_keys
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer
from rollout_trace.wire import decode
from rollout_trace.wire.errors import error_of
from tests.amount import some

MASK = credentials.MASK
IDS: dict[str, Any] = {"model": "m", "logprobs": True, "top_logprobs": 2, "extra_body": {"return_token_ids": True}}


@pytest.fixture(autouse=True)
def _no_keys_of_other_tests() -> Iterator[None]:
    credentials.forget_all()
    yield
    credentials.forget_all()


@pytest.fixture(autouse=True)
def _retries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


@dataclass
class World:
    """One scenario: a server that gives the planted key back, and what came of it."""

    key: str
    url: str

    def client(self, **options: Any) -> Any:
        made = openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": self.key, "max_retries": 0, **options})
        return rt.wrap_openai(made, engine="vllm", keep_bytes=True)

    def chat(self, client: Any, text: str = "hi", **options: Any) -> Any:
        messages = options.pop("messages", [{"role": "user", "content": text}])
        return client.chat.completions.create(**{**IDS, "messages": messages, **options})


def refused(world: World) -> None:
    client = world.client()
    with pytest.raises(openai.APIStatusError), client:
        world.chat(client)


def succeeded(world: World) -> None:
    with world.client() as client:
        world.chat(client)


def streamed(world: World) -> None:
    with world.client() as client, world.chat(client, stream=True) as stream:
        for _ in stream:
            pass


def retried(world: World) -> None:
    with world.client(max_retries=1) as client:
        world.chat(client)


def sent_back(world: World) -> None:
    """What came is sent again, in the next request."""
    with world.client() as client:
        answer = world.chat(client)
        said = {"role": "assistant", "content": answer.choices[0].message.content}
        world.chat(client, messages=[{"role": "user", "content": "hi"}, said, {"role": "user", "content": "again"}])


def in_request(world: World) -> None:
    tool = {"type": "function", "function": {"name": "env", "description": f"uses {world.key}", "parameters": {}}}
    with world.client() as client:
        world.chat(client, f"the key is {world.key}", tools=[tool], user=world.key, stop=[world.key])


def in_tool_run(world: World) -> None:
    with world.client() as client:
        world.chat(client)
    with rt.tool_run("env", arguments={"header": f"Bearer {world.key}"}) as run:
        run.result = {"OPENAI_API_KEY": world.key, world.key: [f"x{world.key}x"]}
    with pytest.raises(RuntimeError), rt.tool_run("env", arguments=json.dumps({"key": world.key})):
        raise RuntimeError(f"no such key: {world.key}")


def in_users_own(world: World) -> None:
    with world.client() as client:
        world.chat(client)
    trajectory = rt.current()
    assert trajectory is not None
    trajectory.metadata = {"command": ["agent.py", f"--key={world.key}"]}
    trajectory.task = rt.Task(id="t", data={"environment": world.key})
    trajectory.stop_reason = f"key {world.key} expired"


def agent_raises(world: World) -> None:
    with world.client() as client:
        world.chat(client)
    with pytest.raises(ValueError), rt.trajectory("child"):
        raise ValueError(f"bad key {world.key}")


def basic(world: World) -> None:
    """`auth=` of the HTTP library: added to the request when it is sent."""
    client = world.client(api_key="none", http_client=openai.DefaultHttpxClient(auth=("user", world.key)))
    with pytest.raises(openai.APIStatusError), client:
        world.chat(client)


def azure(world: World) -> None:
    client = rt.wrap_openai(
        openai.AzureOpenAI(azure_endpoint=world.url, api_version="1", api_key=world.key, max_retries=0)
    )
    with pytest.raises(openai.APIStatusError), client:
        world.chat(client)


def extra_headers(world: World) -> None:
    with world.client(api_key="EMPTY") as client:
        world.chat(client, extra_headers={"Authorization": f"Bearer {world.key}"})


def claude(world: World) -> None:
    client = rt.wrap_anthropic(anthropic.Anthropic(base_url=world.url, api_key=world.key, max_retries=0))
    with pytest.raises(anthropic.APIStatusError), client:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])


def claude_token(world: World) -> None:
    client = rt.wrap_anthropic(
        anthropic.Anthropic(base_url=world.url, auth_token=world.key, api_key=None, max_retries=0)
    )
    with client:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])


def by_address(world: World) -> None:
    with wrap_httpx(httpx.Client(), keep_bytes=True) as client:
        client.post(f"{world.url}/v1/chat/completions", params={"key": world.key}, json={"model": "m", "messages": []})


def by_password(world: World) -> None:
    address = world.url.replace("http://", f"http://user:{quote(world.key, safe='')}@")
    with wrap_httpx(httpx.Client(), keep_bytes=True) as client:
        client.post(f"{address}/v1/chat/completions", json={"model": "m", "messages": []})


class Failing(httpx.BaseTransport):
    """A transport whose exception has the request's headers in it."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot send {dict(request.headers)}", request=request)


def not_sent(world: World) -> None:
    with wrap_httpx(httpx.Client(transport=Failing(), headers={"x-api-key": world.key})) as client:
        with pytest.raises(httpx.ConnectError):
            client.post(f"{world.url}/v1/chat/completions", json={"model": "m", "messages": []})


def by_framework(world: World) -> None:
    with world.client():
        pass
    agent = AgentFrame("solver", metadata={"url": f"https://u:{world.key}@x"})
    frame = ModelFrame("a-framework", parent=agent, messages=[{"role": "user", "content": world.key}])
    frame.answered({"completion": rt.Completion(content=f"it is {world.key}"), "completion_token_ids": [1, 2]})
    frame.end()
    agent.end()


Answer = Callable[[str], Any]
CASES: dict[str, tuple[Callable[[World], None], Answer]] = {
    "401": (refused, lambda key: Fault(status=401, body={"error": {"message": f"Incorrect API key: {key}."}})),
    "401 as text": (refused, lambda key: Fault(status=401, body=f"no access with '{key}'")),
    "at the limit of a message": (refused, lambda key: Fault(status=401, body="x" * 1990 + key)),
    "401 in a detail": (refused, lambda key: Fault(status=401, body={"detail": [{"input": key}]})),
    "escaped, as .NET and PHP do": (
        refused, lambda key: Fault(status=401, body=escaped(key)),
    ),
    "retried": (retried, lambda key: [Fault(status=429, body={"error": {"message": f"{key} is slow"}}), "fine"]),
    "completion": (succeeded, lambda key: f"your key is {key}, keep it"),
    "no JSON": (refused, lambda key: Fault(status=500, body=f"<html>{key}</html>")),
    "streamed, in pieces": (streamed, lambda key: f"your key is {key}, keep it"),
    "streamed tool call": (streamed, lambda key: Reply(tool_calls=[("call", json.dumps({"key": key}))])),
    "streamed reasoning": (streamed, lambda key: Reply("done", reasoning=f"the key {key} is")),
    "tool call": (succeeded, lambda key: Reply("let me", tool_calls=[("call", json.dumps({"a": [key]}))])),
    "extra field": (succeeded, lambda key: Reply("hi", extra_message={"annotations": [{"key": key}]})),
    "request id": (succeeded, lambda key: Reply("hi", headers={"x-request-id": f"r-{key}"})),
    "sent back": (sent_back, lambda key: f"{key} it is"),
    "in a request": (in_request, lambda key: "fine"),
    "in a tool run": (in_tool_run, lambda key: "fine"),
    "the user's own": (in_users_own, lambda key: "fine"),
    "the agent raises": (agent_raises, lambda key: "fine"),
    "basic": (basic, lambda key: Fault(status=401, body={"error": {"message": f"bad: {key}, {basic_of(key)}"}})),
    "azure": (azure, lambda key: Fault(status=401, body={"error": {"message": f"bad: {key}"}})),
    "extra headers": (extra_headers, lambda key: f"you sent {key}"),
    "anthropic": (claude, lambda key: Fault(status=401, body={"error": {"message": f"invalid x-api-key {key}"}})),
    "anthropic's token": (claude_token, lambda key: f"you sent {key}"),
    "in an address": (by_address, lambda key: f"you sent {key}"),
    "a password": (by_password, lambda key: f"you sent {key} as {basic_of(key)}"),
    "an exception": (not_sent, lambda key: "fine"),
    "a framework": (by_framework, lambda key: "fine"),
}  # fmt: skip


def escaped(key: str) -> bytes:
    text = "".join(f"\\u{ord(one):04x}" if one in "+/=-" else one for one in key)
    return b'{"error": {"message": "bad key %s"}}' % text.encode()


def basic_of(key: str) -> str:
    return base64.b64encode(f"user:{key}".encode()).decode()


KEYS = ("sk-proj-Ab3_dEf6hIj9", "a/b+C9d8e7f6==", 'q"uo\\te-77-x')
FILES: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".jsonl.gz": gzip.decompress,
    ".jsonl.zst": zstandard.ZstdDecompressor().decompress,
}


def ids_of(step: Step) -> list[bytes]:
    return [ids.tobytes() for ids in (step.prompt_token_ids, step.completion_token_ids) if ids is not None]


def spellings(key: str) -> list[bytes]:
    """What no output may hold."""
    texts = {key, json.dumps(key)[1:-1], repr(key)[1:-1], basic_of(key), json.dumps(json.dumps(key)[1:-1])[1:-1]}
    return [text.encode() for text in texts]


def assert_clean(key: str, what: str, data: bytes) -> None:
    for spelling in spellings(key):
        at = data.find(spelling)
        assert at < 0, f"{what} holds the key: …{data[max(0, at - 80) : at + 80]!r}…"


@pytest.mark.parametrize("key", KEYS, ids=["plain", "base64", "quoted"])
@pytest.mark.parametrize("name", some(CASES, *list(CASES)[::2]))
def test_no_output_holds_a_key(name: str, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scenario, answer = CASES[name]
    caplog.set_level(logging.DEBUG, logger="rollout_trace")
    number = list(CASES).index(name)
    suffix = list(FILES)[number % len(FILES)]
    path = tmp_path / f"r{suffix}"
    with ScriptedServer(lambda _: answer(key)) as server:
        with rt.recording(path, media="folder"), rt.trajectory() as trajectory:
            scenario(World(key, server.url))
            reprs = repr([trajectory.steps, [step.completion for step in trajectory.steps]])
    assert trajectory.steps or name == "a framework"

    lines = FILES[suffix](path.read_bytes())
    assert_clean(key, "the file", lines)
    for kept in rt.read(path):
        assert_clean(key, "a trajectory that was read", repr_of(kept))
    assert_clean(key, "an open step", reprs.encode())
    cut_keys(trajectory)
    for one in (trajectory, *trajectory._children):
        cut_keys(one)
        assert_clean(key, "the trajectory", repr_of(one))
    assert_clean(key, "a pickle", pickle.dumps([trajectory.steps, trajectory.tool_runs, trajectory.metadata]))
    assert_clean(key, "the log", caplog.text.encode())
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or file == path, file
    # Neither does any id spell it.
    spelled = b"".join(id.to_bytes(4, "little") for id in ByteTokenizer().encode(key))
    assert all(spelled not in ids for step in trajectory.steps for ids in ids_of(step))
    assert spelled not in pickle.dumps(trajectory.steps)


def repr_of(trajectory: rt.Trajectory) -> bytes:
    parts = [getattr(trajectory, name) for name in ("error", "task", "metadata", "tool_runs", "stop_reason")]
    steps = [step.__getstate__() for step in trajectory.steps]
    lists = [(step.messages, step.tools) for step in trajectory.steps]
    return repr((parts, steps, lists)).encode()


def test_it_says_what_was_cut_and_where_ids_went(tmp_path: Path) -> None:
    key = KEYS[0]
    with ScriptedServer(lambda request: f"it is {key}." if len(request["messages"]) == 1 else "so it is") as server:
        world = World(key, server.url)
        with rt.trajectory() as trajectory:
            sent_back(world)
            with world.client() as client:
                world.chat(client, "something else", messages=[{"role": "user", "content": "a"}] * 2)
    first, second, third = trajectory.steps
    assert first.completion is not None
    assert first.completion.content == f"it is {MASK}."
    assert list(second.messages or ())[1] == {"role": "assistant", "content": f"it is {MASK}."}
    for step in (first, second):
        assert (step.trainable, step.token_source, step.logprobs, step.top_logprobs) == (False, None, None, None)
        assert (step.prompt_token_ids, step.completion_token_ids, step.request_bytes) == (None, None, None)
        assert step.token_issue is not None
        assert step.token_issue.code == "redacted"
    assert third.trainable
    assert third.token_issue is None
    assert third.completion_token_ids is not None
    assert {one.code for one in trajectory.check() if one.step_id == first.id} == {"not_trainable", "redacted"}
    assert trajectory.sequences().report.left_out == {"not_trainable": (first.id, second.id)}


def test_of_several_choices_only_those_with_the_key_lose_their_ids() -> None:
    key = KEYS[0]

    def script(request: Any, choice: int) -> str:
        return key if choice == 1 else "fine"

    with ScriptedServer(script) as server, rt.trajectory() as trajectory:
        world = World(key, server.url)
        with world.client() as client:
            world.chat(client, n=3)
    assert [step.trainable for step in trajectory.steps] == [True, False, True]
    assert [step.completion_token_ids is None for step in trajectory.steps] == [False, True, False]


def test_texts_of_tokens_that_spell_a_key_go_with_the_ids() -> None:
    """Also where the message has no such text: of a tool call that a parser could not read, say."""
    key = KEYS[0]
    entries = [{"token": token, "logprob": -0.5} for token in ("<call>", key[:9], key[9:])]
    choice = {"message": {"content": "fine"}, "token_ids": [1, 2, 3], "logprobs": {"content": entries}}
    answer = json.dumps({"choices": [choice]}).encode()
    (before,) = decode("openai.chat", b"{}", answer)
    assert before.token_texts == ["<call>", key[:9], key[9:]]
    credentials.remember(key)
    (step,) = decode("openai.chat", b"{}", answer)
    assert (step.token_texts, step.completion_token_ids, step.trainable) == (None, None, False)
    assert step.token_issue is not None
    assert step.token_issue.code == "redacted"


@pytest.mark.parametrize(
    "given", ["EMPTY", "none", "not-needed", "test", "dummy", "lm-studio", "ollama", "x" * 9 + "1"]
)
def test_placeholders_stay(given: str) -> None:
    with ScriptedServer(lambda _: f"say {given} to it") as server, rt.trajectory() as trajectory:
        with World(given, server.url).client() as client:
            World(given, server.url).chat(client, f"what of {given}?")
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == f"say {given} to it"
    assert step.completion_token_ids is not None
    assert not credentials.any_known()


def test_the_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LIMIT", 100)
    keys = [f"sk-number-{number:05}" for number in range(credentials.LIMIT + 10)]
    credentials.remember(*keys)
    assert credentials.cut(keys[9]) == keys[9]
    assert credentials.cut(keys[10]) == credentials.cut(keys[-1]) == MASK


def test_values_without_keys_do_not_fill_the_memory() -> None:
    for number in range(10 * credentials.LIMIT):
        credentials._learn_header(b"AWS4-HMAC-SHA256 Credential=AKIA/1, Signature=%d" % number)
    assert len(credentials._seen) <= 4 * credentials.LIMIT
    assert not credentials.any_known()


def test_a_key_that_contains_another_is_cut_whole() -> None:
    credentials.remember("abcd1234", "abcd1234-and-more")
    assert credentials.cut("abcd1234-and-more, abcd1234") == f"{MASK}, {MASK}"
    assert credentials.cut_bytes(b"abcd1234-and-more") == MASK.encode()


def test_what_holds_no_key_is_the_same_object() -> None:
    credentials.remember(*KEYS)
    value = {"a": ["text", {"b": 1.5}], "c": None}
    assert change_value(value, "metadata", credentials.change) is value
    data = b"no key"
    assert credentials.cut_bytes(data) is data


def test_which_exchanges_cannot_be_kept_as_bytes() -> None:
    key = KEYS[1]
    clean = b'{"choices": []}'
    assert not credentials.spoils(None, key.encode())
    credentials.remember(key)
    assert not credentials.spoils(b'{"messages": []}', clean)
    assert credentials.spoils(json.dumps({"messages": [key]}).encode(), clean)
    assert credentials.spoils(None, json.dumps({"error": key}).encode())
    assert credentials.spoils(None, escaped(key))
    pieces = b"".join(b"data: %s\n\n" % json.dumps({"text": one}).encode() for one in key)
    assert credentials.spoils(b"{}", pieces)


def test_a_key_that_is_learned_after_a_step_was_decoded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = KEYS[0]
    with ScriptedServer(f"it is {key}") as server, rt.recording(tmp_path / "r.jsonl"), rt.trajectory() as trajectory:
        with World("none", server.url).client() as client:
            World("none", server.url).chat(client)
        assert trajectory.steps[0].trainable
        credentials.remember(key)
    (kept,) = rt.read(tmp_path / "r.jsonl")
    assert not kept.steps[0].trainable
    assert kept.steps[0].completion_token_ids is None
    assert key.encode() not in (tmp_path / "r.jsonl").read_bytes()
    # In memory too, and nobody is warned of having set them.
    assert not trajectory.steps[0].trainable
    assert "was set after" not in caplog.text
    assert trajectory.steps == kept.steps


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("name", ["content", "arguments", "partial_json", "text"])
def test_a_key_in_pieces_is_found_in_a_stream(name: str, separators: tuple[str, str]) -> None:
    key = KEYS[0]
    credentials.remember(key)
    pieces = ['say "', *key, '" again']
    stream = b"".join(
        b"data: %s\n\n" % json.dumps({"choices": [{"delta": {name: piece}}]}, separators=separators).encode()
        for piece in pieces
    )
    assert not credentials.found_in(stream)
    assert credentials.split_in(stream)
    assert not credentials.split_in(stream.replace(b'"A"', b'"B"'))


def test_the_log_has_no_key_even_in_tracebacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    caplog.set_level(logging.DEBUG, logger="rollout_trace")
    credentials.remember(KEYS[0])
    guard.failed("close", None, ValueError(f"first\nsecond {KEYS[0]}"))
    guard.warn(f"refused: {KEYS[0]}")
    guard.warn("x" * 1995 + KEYS[0])
    assert "traceback" in caplog.text
    assert KEYS[0][:8] not in caplog.text
    guard.reset()


def test_errors_of_any_origin_are_cut() -> None:
    credentials.remember(KEYS[0])
    assert ErrorInfo(type="E", message=f"a {KEYS[0]}", code=KEYS[0]) == ErrorInfo(
        type="E", message=f"a {MASK}", code=MASK
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_the_keys_and_can_learn_more() -> None:
    credentials.remember(KEYS[0])
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with credentials._lock:
            entered.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    child = os.fork()
    if not child:
        credentials.remember("sk-learned-1-later")
        os._exit(0 if credentials.cut(KEYS[0] + "sk-learned-1-later") == MASK * 2 else 1)
    leave.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_cutting_a_key_is_not_taken_for_a_users_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning of fields that are set after the close is for what the user sets."""
    key = "sk-planted-0123456789abcdef"
    path = tmp_path / "runs.jsonl"
    with ScriptedServer("fine") as server, rt.recording(path):
        world = World(key, server.base_url.removesuffix("/v1"))
        with rt.trajectory() as trajectory, world.client() as client:
            world.chat(client)
            with rt.tool_run("env", arguments={}) as run:
                run.result = f"KEY={key}"
    assert trajectory.tool_runs[0].result == f"KEY={MASK}"
    assert [step.completion.content for step in trajectory.steps if step.completion] == ["fine"]
    assert "was set after" not in caplog.text
    assert key not in path.read_text()


def test_a_key_where_an_error_is_cut_short_leaves_no_half() -> None:
    credentials.remember("sk-abcdef-0123456")
    for length in (2000, 1024 * 1024):
        message = error_of(b"x" * (length - 5) + b"sk-abcdef-0123456 was refused", 401).message
        assert "sk-" not in message
