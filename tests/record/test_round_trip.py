"""Steps that are recovered from a journal equal those that were recorded, field by field."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import rollout_trace as rt
from rollout_trace.file import journal as form
from rollout_trace.record import call as call_module
from rollout_trace.record.frames import AgentFrame, ModelFrame, ToolFrame
from rollout_trace.record.journal import Journal
from rollout_trace.testing import Fault, Reply, ScriptedServer, ToolCall

from .journaled import ASKED, ask, attach, died, files_of, journaled, sdk, talk, track

Scenario = Callable[[ScriptedServer], object]


def stream(server: ScriptedServer, **options: Any) -> None:
    for _ in ask(sdk(server), stream=True, **options):
        pass


def left_early(server: ScriptedServer) -> None:
    with ask(sdk(server), stream=True) as chunks:
        next(chunks)


def collected(server: ScriptedServer) -> None:
    chunks = ask(sdk(server), stream=True)
    next(chunks)
    del chunks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def failing(server: ScriptedServer) -> None:
    with pytest.raises(openai.OpenAIError):
        ask(sdk(server))


def failing_stream(server: ScriptedServer) -> None:
    with pytest.raises((openai.OpenAIError, ValueError, httpx2.HTTPError)):
        stream(server)


def retried(server: ScriptedServer) -> None:
    ask(sdk(server).with_options(max_retries=1))


def responses(server: ScriptedServer) -> None:
    sdk(server).responses.create(model="m", input="hi")


def completions(server: ScriptedServer) -> None:
    sdk(server).completions.create(model="m", prompt="once", logprobs=0, extra_body={"return_token_ids": True})


def messages(server: ScriptedServer) -> None:
    client = rt.wrap_anthropic(track(anthropic.Anthropic(base_url=server.url, api_key="none")))
    asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    client.messages.create(**asked)
    with client.messages.stream(**asked) as events:
        events.until_done()


def settings(server: ScriptedServer) -> None:
    client = track(openai.OpenAI(base_url=server.base_url, api_key="none"))
    ask(rt.wrap_openai(client, engine="vllm", keep_bytes=True, logprobs_mode="processed"))


def wishes(server: ScriptedServer) -> None:
    """Of what is wished beside ids, some is refused, some never sent in this form, some not sent."""
    client = track(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0))
    rt.wrap_openai(client, engine=rt.Engine("vllm", routed_experts=True, prompt_logprobs=0, top_logprobs=5))
    asked: dict[str, Any] = {"model": "wishes", "messages": [{"role": "user", "content": "hi"}]}
    client.chat.completions.create(**asked)
    for _ in client.chat.completions.create(**asked, stream=True):
        pass
    client.chat.completions.create(**asked, logprobs=True, top_logprobs=1)
    rt.wrap_openai(client, engine=rt.Engine("auto", prompt_logprobs=0)).chat.completions.create(**asked)


def too_long(server: ScriptedServer) -> None:
    """One stream is read to its end, one is left."""
    client = track(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0))
    rt.wrap_openai(client, engine=rt.Engine("vllm", top_logprobs=5), max_call_bytes=200)
    ask(client)
    for _ in ask(client, stream=True):
        pass
    with ask(client, stream=True) as chunks:
        next(chunks)


def asynchronous(server: ScriptedServer) -> None:
    async def agent() -> None:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
            wrapped = rt.wrap_openai(client)
            for number in range(3):
                asked: list[Any] = [{"role": "user", "content": f"{number}"}]
                await wrapped.chat.completions.create(messages=asked, **ASKED)

    asyncio.run(agent())


def in_turns(server: ScriptedServer) -> None:
    """Two agents in one trajectory, whose requests have nothing in common."""
    client, said = sdk(server), ("a" * 500, "b" * 500)
    for turn in range(6):
        ask(client, said[turn % 2] + f" {turn}")


def in_threads(server: ScriptedServer) -> None:
    client = sdk(server)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(rt.propagate(lambda number: ask(client, f"{number}")), range(12)))


def refused(name: str) -> Fault:
    return Fault(status=400, body={"error": {"message": f"{name} is too large", "param": name, "code": 400}})


SCENARIOS: dict[str, tuple[Any, Scenario]] = {
    "one call": ("ok", lambda server: ask(sdk(server))),
    "a conversation": ("an answer", lambda server: talk(sdk(server), 6)),
    "a stream": ("an answer", stream),
    "gzip": (Reply("packed", compress="gzip"), lambda server: ask(sdk(server))),
    "a stream in gzip": (Reply("packed", compress="gzip"), stream),
    "two choices": (lambda request, choice: f"{choice}", lambda server: ask(sdk(server), n=2)),
    "tool calls": (Reply(None, [ToolCall("add", '{"a": 1}')]), lambda server: ask(sdk(server))),
    "an error": (Fault(status=500), failing),
    "no JSON": (Fault(bad_json=True), failing_stream),
    "an error in a stream": (Fault("long answer", error_event_after=2), failing_stream),
    "cut off": (Fault("long answer", cut_after=2), failing_stream),
    "a retry": ([Fault(status=503), "ok"], retried),
    "left early": ("a longer answer", left_early),
    "garbage collected": ("a longer answer", collected),
    "responses": ("ok", responses),
    "completions": ("ok", completions),
    "anthropic": ("ok", messages),
    "settings": ("ok", settings),
    "wishes": ("an answer", wishes),
    "wishes that are refused": ([refused("prompt_logprobs"), "one", refused("top_logprobs"), *["more"] * 3], wishes),
    "too long": ("a longer answer", too_long),
    "async": ("ok", asynchronous),
    "agents in turns": ("ok", in_turns),
    "threads": ("ok", in_threads),
    "half a character": (Reply("cut \ud83d"), lambda server: ask(sdk(server))),
}


@pytest.mark.parametrize("seconds", [1.0, 0.0], ids=["at the end", "in flight"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_steps_are_recovered_as_recorded(
    name: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", seconds)
    script, scenario = SCENARIOS[name]
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer(script) as server, journaled(journal, task="t", metadata={"k": [1]}) as trajectory:
        scenario(server)
        recorded = list(trajectory.steps)
        died(journal)
    assert recorded
    found = rt.recover(tmp_path / "out.jsonl")
    assert found.report.is_clean, str(found.report)
    (one,) = found
    assert one.steps == recorded
    assert (one.id, one.status, one.task, one.metadata) == (trajectory.id, "aborted", rt.Task(id="t"), {"k": [1]})
    assert one.started_at == trajectory.started_at
    assert one.ended_at is None


def test_a_stream_in_flight_is_abandoned_with_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", 0.0)
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer("one two three four") as server, journaled(journal):
        chunks = ask(sdk(server), stream=True)
        seen = [next(chunks).choices[0].delta.content or "" for _ in range(4)]
        (one,) = _recovered_of_a_copy(tmp_path)
        chunks.close()
    (step,) = one.steps
    assert step.status == "abandoned"
    assert step.completion is not None
    assert str(step.completion.content).startswith("".join(seen))
    assert step.completion_token_ids is not None
    assert len(step.completion_token_ids) >= 3
    assert step.messages == [{"role": "user", "content": "hi"}]
    died(journal)


def test_a_retry_in_flight_drops_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollout_trace.clients import recorder
    from rollout_trace.record.settings import Settings

    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", 0.0)
    journal = Journal(tmp_path / "out.jsonl")
    with journaled(journal) as trajectory:
        call = recorder.begin(Settings(lambda method, path: None), "openai.chat")
        for body in (b'{"model": "first"}', b'{"model": "second"}'):
            recorder.attempt(call, body)
            recorder.answered(call, 200, {"content-type": "text/event-stream"})
            recorder.receive(call, b'data: {"id": "%s"}\n\n' % body[11:14])
        recorder.ended(call)
        recorded = list(trajectory.steps)
        died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one.steps == recorded
    assert one.steps[0].model == "second"


def _recovered_of_a_copy(folder: Path) -> rt.Recovered:
    """What would be there if the process were killed now: a copy of the journal, which nobody holds."""
    copied = folder / "copy.jsonl.journal"
    copied.mkdir()
    for file in files_of(folder / "out.jsonl"):
        (copied / file.name).write_bytes(file.read_bytes())
    return rt.recover(folder / "copy.jsonl")


def test_a_closed_trajectory_keeps_its_outcome(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer("ok") as server:
        with journaled(journal) as trajectory:
            ask(sdk(server))
            trajectory.reward = 0.5
            trajectory.rewards = {"format": 1.0}
    trajectory.steps[0].reward = 2.0
    trajectory.steps[0].metadata = {"seen": True}
    state = trajectory._recorder
    state.journal.completed(trajectory)
    died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one == trajectory
    assert (one.status, one.reward, one.steps[0].reward) == ("completed", 0.5, 2.0)


def test_values_that_are_changed_in_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer("ok") as server, journaled(journal, metadata={"turn": 0}) as trajectory:
        client = sdk(server)
        ask(client)
        trajectory.metadata["turn"] = 1  # type: ignore[index]
        ask(client)
        died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one.metadata == {"turn": 1}


def test_tool_runs_are_linked(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    script: list[Any] = [Reply(None, [ToolCall("add", '{"a": 1}')]), "done"]
    with ScriptedServer(script) as server, journaled(journal):
        answer = ask(sdk(server))
        (called,) = answer.choices[0].message.tool_calls
        with rt.tool_run("add", tool_call_id=called.id, arguments={"a": 1}) as run:
            run.result = {"sum": 1}
        with pytest.raises(KeyError), rt.tool_run("broken"):
            raise KeyError("x")
        died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert [(r.name, r.result, r.step_id) for r in one.tool_runs] == [
        ("add", {"sum": 1}, one.steps[0].id),
        ("broken", None, None),
    ]
    assert one.tool_runs[1].error == rt.ErrorInfo(type="KeyError", message="'x'")


def test_halves_of_characters(tmp_path: Path) -> None:
    journal, half = Journal(tmp_path / "out.jsonl"), "cut \ud83d"
    with ScriptedServer(Fault(status=500, body=json.dumps({"error": {"message": half}}))) as server:
        with journaled(journal, metadata={half: half}) as trajectory:
            failing(server)
            with rt.tool_run("say", arguments=half) as run:
                run.result = [half]
            recorded = list(trajectory.steps)
            died(journal)
    found = rt.recover(tmp_path / "out.jsonl")
    assert found.report.is_clean, str(found.report)
    assert found[0].steps == recorded
    assert (found[0].metadata, found[0].tool_runs[0].result) == ({half: half}, [half])


def test_an_id_that_the_user_set(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("ok") as server, journaled(journal) as trajectory:
        ask(sdk(server))
        trajectory.id = "mine"
        died(journal)
    (one,) = rt.recover(output)
    assert one.id == "mine"
    with rt.JSONLWriter(output) as writer:
        writer.write(one)
    assert rt.recover(output).report.present == [journal_id(output)]


def journal_id(output: Path) -> str:
    records = form.records(files_of(output)[0].read_bytes())
    heads = [one.head for one in records if isinstance(one, form.Record)]
    return str(heads[1]["trajectory"])


def test_families(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer("ok") as server, journaled(journal, name="outer") as outer:
        client = sdk(server)
        ask(client)
        with journaled(journal, name="inner") as inner:
            ask(client)
        rt.reward(1.0)
        died(journal)
    found = rt.recover(tmp_path / "out.jsonl")
    assert [(one.name, one.status) for one in found] == [("outer", "aborted"), ("inner", "completed")]
    assert [one.episode_id for one in found] == [outer.id, outer.id]
    assert (found[1].parent_id, found[1].parent_step_id) == (outer.id, outer.steps[0].id)
    assert found[1].steps == inner.steps


def test_steps_that_a_framework_reported(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with rt.trajectory() as trajectory:
        attach(journal, trajectory)
        with AgentFrame("agent"):
            for turn in range(5):
                said = [{"role": "user", "content": f"{number}" * 50} for number in range(turn + 1)]
                with ModelFrame("tiny", facts={"messages": said, "model": "m"}) as frame:
                    frame.answered({"completion": rt.Completion(content=f"answer {turn}")})
            with ToolFrame("add") as tool:
                tool.run.result = 5
        recorded = list(trajectory.steps)
        died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one.steps == recorded
    assert [run.result for run in one.tool_runs] == [5]
    assert sum(file.stat().st_size for file in files_of(tmp_path / "out.jsonl")) < 9000


def test_steps_without_a_response_id_are_not_taken_for_a_failed_call(tmp_path: Path) -> None:
    """A call that failed has no response id either; they are two."""
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer(Fault(status=400)) as server, journaled(journal) as trajectory:
        with pytest.raises(openai.BadRequestError):
            ask(sdk(server))
        with AgentFrame("agent"), ModelFrame("tiny", facts={"messages": [], "model": "m"}) as frame:
            frame.answered({"completion": rt.Completion(content="answer")})
        recorded = list(trajectory.steps)
        died(journal)
    assert [step.status for step in recorded] == ["error", "ok"]
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one.steps == recorded


def test_a_long_agent_is_linear_in_what_is_new(tmp_path: Path) -> None:
    sizes = []
    for turns in (20, 40):
        journal = Journal(tmp_path / f"{turns}.jsonl")
        with ScriptedServer("an answer of some words") as server, journaled(journal) as trajectory:
            # Without prompt ids in the answers: they would be new bytes in each turn.
            talk(sdk(server), turns, extra_body={})
            recorded = list(trajectory.steps)
            died(journal)
        (one,) = rt.recover(tmp_path / f"{turns}.jsonl")
        assert one.steps == recorded
        sizes.append(sum(file.stat().st_size for file in files_of(tmp_path / f"{turns}.jsonl")))
    assert sizes[1] < 2.1 * sizes[0]
