"""Ids made from text: only on request, said to be what they are, and compared with the engine's counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data.model import CUT_OFF, Completion, Step
from rollout_trace.testing import ByteTokenizer, Fault, Reply, ScriptedServer, load_exchanges
from rollout_trace.train.retokenize import CountDifference
from rollout_trace.wire import decode
from rollout_trace.wire.profiles import EngineName

DATA = Path(__file__).parents[1] / "data"


class Tokenizer(ByteTokenizer):
    """As those of `transformers`: special tokens in a text are recognised."""

    def encode(self, text: str, *, special: bool = False, add_special_tokens: bool = True) -> list[int]:
        return super().encode(text, special=special or not add_special_tokens)


TOKENIZER = Tokenizer()
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def agent(engine: EngineName | None, *replies: Any, **request: Any) -> rt.Trajectory:
    """A tool loop of as many turns as there are replies, recorded."""
    with ScriptedServer(list(replies), tokenizer=TOKENIZER) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none", max_retries=0), engine=engine)
        messages: list[Any] = [{"role": "user", "content": "Add 1 and 2."}]
        with rt.trajectory() as trajectory:
            for _ in replies:
                try:
                    answer = client.chat.completions.create(model="m", messages=messages, tools=[TOOL], **request)
                except Exception:
                    continue
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))
                messages += [{"role": "tool", "tool_call_id": "c", "content": "3"}]
        client.close()
    return trajectory


REPLIES = (Reply(None, [("add", '{"a": 1}')]), Reply("It is 3."), Reply("It is th", finish_reason="length"))


@pytest.fixture(autouse=True)
def without_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "rollout_trace")


def test_made_ids_are_those_the_engine_had() -> None:
    """The scripted model samples what its template renders, so here both must be the same, stop tokens included."""
    real, bare = agent("vllm", *REPLIES), agent(None, *REPLIES)
    report = bare.retokenize(TOKENIZER)
    assert report.retokenized == [step.id for step in bare.steps]
    assert (report.kept, report.failed, report.disagreements) == ([], {}, [])
    for made, step in zip(bare.steps, real.steps, strict=True):
        for name in ("prompt_token_ids", "completion_token_ids"):
            assert getattr(made, name).dtype == np.int32
            assert getattr(made, name).tolist() == getattr(step, name).tolist()
        assert (made.token_source, made.logprobs, made.logprobs_mode) == ("retokenized", None, None)
        assert made.token_issue is None


def test_made_ids_are_not_trained_on_unless_asked_for() -> None:
    bare = agent(None, *REPLIES[:2])
    bare.retokenize(TOKENIZER)
    rows = bare.sequences()
    assert (list(rows), set(rows.report.left_out)) == ([], {"retokenized"})
    (row,) = bare.sequences(allow={"retokenized"})
    assert (row.token_source, row.logprobs, len(row.step_ids)) == ("retokenized", None, 2)


def test_a_file_keeps_that_they_were_made(tmp_path: Any) -> None:
    bare = agent(None, *REPLIES)
    bare.retokenize(TOKENIZER)
    with rt.JSONLWriter(tmp_path / "made.jsonl") as writer:
        writer.write(bare)
    (back,) = rt.read(tmp_path / "made.jsonl")
    assert back == bare
    assert {step.token_source for step in back.steps} == {"retokenized"}


def test_the_engines_ids_are_left_alone() -> None:
    real = agent("vllm", *REPLIES[:2])
    before = [replace(step) for step in real.steps]
    report = real.retokenize(TOKENIZER)
    assert report.kept == [step.id for step in real.steps]
    assert (report.retokenized, real.steps) == ([], before)


def test_counts_that_differ_are_reported() -> None:
    """Another tokenizer than the engine's: the text is the same, the number of ids is not."""
    bare = agent(None, REPLIES[1])
    (step,) = bare.steps
    other = Tokenizer(words=["It is", "Add"])
    report = bare.retokenize(other)
    assert step.usage is not None
    asked, said = step.usage.input or 0, step.usage.output or 0
    assert report.disagreements == [
        CountDifference(step_id=step.id, part="prompt", made=asked - 2, counted=asked),
        CountDifference(step_id=step.id, part="completion", made=said - 4, counted=said),
    ]


def test_ids_whose_count_is_known_to_be_wrong_are_not_taken_for_made_ones(tmp_path: Path) -> None:
    """That they were made is one thing to allow, that they are not the engine's another."""
    bare = agent(None, REPLIES[1], REPLIES[1])
    first, second = bare.steps
    # Of the first no count is known.
    bare.steps = [replace(first, usage=None), second]
    bare.retokenize(Tokenizer(words=["It is", "Add"]))
    with rt.JSONLWriter(tmp_path / "made.jsonl") as writer:
        writer.write(bare)
    for trajectory in (bare, *rt.read(tmp_path / "made.jsonl")):
        rows = trajectory.sequences(allow={"retokenized"})
        assert [row.step_ids for row in rows] == [(first.id,)]
        assert rows.report.left_out == {"usage_differs": (second.id,)}
        issue = trajectory.steps[1].token_issue
        assert issue is not None
        assert "prompt ids were made, usage says" in issue.message
        assert ("usage_differs", second.id) in {(one.code, one.step_id) for one in trajectory.check()}
        both = trajectory.sequences(allow={"retokenized", "usage_differs"}).report
        assert (both.steps_used, both.left_out) == (2, {})


VOCABULARY = json.loads((DATA / "tiny-model" / "tokenizer.json").read_text(encoding="utf-8"))


def text_of(ids: list[int]) -> str:
    """The text of ids of the tiny model, whose tokens are bytes written as characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    pieces = {number: piece for piece, number in VOCABULARY["model"]["vocab"].items()}
    added = {one["id"]: one["content"].encode() for one in VOCABULARY["added_tokens"]}
    held = (added.get(one) or bytes(byte_of[character] for character in pieces[one]) for one in ids)
    return b"".join(held).decode()


class ToolsAlone(Tokenizer):
    """A template that writes the tools, as most do, and nothing else."""

    def apply_chat_template(self, messages: Any, *others: Any, **more: Any) -> Any:
        end = "" if more["add_generation_prompt"] else "answer"
        return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in more["tools"]) + end


def recorded_tools() -> dict[str, Step]:
    """Steps whose prompts vLLM rendered with tools."""
    found = {}
    for one in load_exchanges(DATA / "wire_vllm.jsonl.xz"):
        if one.path == "/v1/chat/completions" and one.status == 200 and one.name.startswith("tools_"):
            (step,) = decode("openai.chat", one.request, one.response, content_type=one.content_type)
            if step.prompt_token_ids is not None:
                found[one.name] = step
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["as-sent", "turned-round"])
def test_tools_are_written_as_vllm_writes_them(turned: bool) -> None:
    """Whatever order their keys were sent in, and also where a description was not sent."""
    steps = recorded_tools()
    assert any("description" not in tool["function"] for step in steps.values() for tool in step.tools or ())
    assert len(steps) > 10
    for name, step in steps.items():
        assert step.prompt_token_ids is not None
        _, _, after = text_of(step.prompt_token_ids.tolist()).partition("<tools>\n")
        expected, _, _ = after.partition("\n</tools>")
        tools: Any = step.tools
        if turned:
            tools = [
                dict(reversed({**tool, "function": dict(reversed(tool["function"].items()))}.items())) for tool in tools
            ]
        bare = replace(
            step, tools=tools, prompt_token_ids=None, completion_token_ids=None, logprobs=None, top_logprobs=None,
            token_source=None, usage=None, status="ok", completion=Completion(content="answer"),
        )  # fmt: skip
        report = rt.Trajectory(steps=[bare]).retokenize(ToolsAlone())
        assert report.failed == {}, name
        assert bare.prompt_token_ids is not None
        assert bytes(bare.prompt_token_ids.tolist()).decode() == expected, name


SHORT: Any = {"function": {"parameters": {}, "name": "add"}, "type": "function"}
FLAT = {"type": "function", "parameters": {}, "name": "add"}
BY_VLLM = '{"type": "function", "function": {"name": "add", "description": null, "parameters": {}}}'
AS_SENT = json.dumps(SHORT)


@pytest.mark.parametrize(
    ("engine", "protocol", "tool", "counted", "expected"),
    [
        ("vllm", "openai.chat", SHORT, None, BY_VLLM),
        ("vllm", "openai.chat", SHORT, len(AS_SENT), BY_VLLM),
        ("sglang", "openai.chat", SHORT, len(BY_VLLM), AS_SENT),
        (None, "openai.chat", SHORT, None, BY_VLLM),
        (None, "openai.chat", SHORT, len(BY_VLLM), BY_VLLM),
        (None, "openai.chat", SHORT, len(AS_SENT), AS_SENT),
        (None, "openai.chat", SHORT, len(AS_SENT) - 1, AS_SENT),
        (None, "openai.responses", FLAT, None, BY_VLLM),
        (None, "anthropic.messages", {"input_schema": {}, "name": "add"}, None, BY_VLLM),
    ],
)
def test_the_engine_and_its_count_say_how_tools_were_rendered(
    engine: Any, protocol: str, tool: Any, counted: int | None, expected: str
) -> None:
    step = Step(
        id="a", call_id="a", engine=engine, protocol=protocol, tools=[tool], usage=rt.Usage(input=counted),
        messages=[{"role": "user", "content": "Hi"}], completion=Completion(content="answer"),
    )  # fmt: skip
    before = json.dumps(tool)
    report = rt.Trajectory(steps=[step]).retokenize(ToolsAlone())
    assert report.failed == {}
    assert step.prompt_token_ids is not None
    assert bytes(step.prompt_token_ids.tolist()).decode() == expected
    assert json.dumps(tool) == before


def test_a_tool_that_the_provider_runs_itself_cannot_be_rendered() -> None:
    step = Step(
        id="a", call_id="a", protocol="openai.responses", tools=[{"type": "web_search"}], messages=["Hi"],
        completion=Completion(content="answer"),
    )  # fmt: skip
    report = rt.Trajectory(steps=[step]).retokenize(ToolsAlone())
    assert "web_search" in report.failed["a"]


def test_the_usage_of_several_choices_is_not_that_of_one() -> None:
    bare = agent(None, REPLIES[1], n=2)
    report = bare.retokenize(TOKENIZER)
    assert len(report.retokenized) == 2
    assert report.disagreements == []


def test_what_cannot_be_made_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A failed call is left alone; a template that raises, or renders history otherwise, is a reason."""

    class Strict(Tokenizer):
        def apply_chat_template(self, messages: Any, *others: Any, **more: Any) -> Any:
            if not more["add_generation_prompt"] and len(messages) > 2:
                raise KeyError("no tools here")
            text = super().apply_chat_template(messages, *others, **more)
            return text if more["add_generation_prompt"] else text.replace("1", "one", 1)

    bare = agent(None, REPLIES[1], Fault(status=500), REPLIES[1])
    first, failed, third = bare.steps
    report = bare.retokenize(Strict())
    assert report.skipped == {failed.id: "error"}
    assert set(report.failed) == {first.id, third.id}
    assert "differently once the answer is added" in report.failed[first.id]
    assert report.failed[third.id] == "KeyError: 'no tools here'"
    assert all(step.completion_token_ids is None and step.token_source is None for step in (first, failed, third))


def test_an_open_trajectory_is_refused() -> None:
    with rt.trajectory() as trajectory:
        with pytest.raises(ValueError, match="the trajectory is still open"):
            trajectory.retokenize(TOKENIZER)


def test_text_prompts_are_tokenised_as_they_are() -> None:
    with ScriptedServer("Fine.", tokenizer=TOKENIZER) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"))
        with rt.trajectory() as bare:
            client.completions.create(model="m", prompt="Greet: ")
        client.close()
    bare.retokenize(TOKENIZER)
    (step,) = bare.steps
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert bytes(step.prompt_token_ids.tolist()) == b"Greet: "
    assert bytes(step.completion_token_ids.tolist()) == b"Fine."


def test_steps_that_are_not_tried_are_named() -> None:
    bare = agent(None, REPLIES[1], REPLIES[1])
    first, second = bare.steps
    assert bare.retokenize(TOKENIZER).skipped == {}
    report = bare.retokenize(TOKENIZER)
    assert report.skipped == {first.id: "retokenized", second.id: "retokenized"}
    assert (report.retokenized, report.kept, report.failed) == ([], [], {})


class Ending(ByteTokenizer):
    """A template whose every message ends with the end-of-sequence token."""

    def apply_chat_template(self, messages: Any, *others: Any, **more: Any) -> Any:
        said = "".join(f"<{one['role']}>{one['content']}\x03" for one in messages)
        return said + ("<assistant>" if more.get("add_generation_prompt") else "")

    def encode(self, text: str, *, special: bool = False, add_special_tokens: bool = True) -> list[int]:
        return [self.eos_token_id if one == 3 else one for one in text.encode()]


@pytest.mark.parametrize(
    ("facts", "ends"),
    [
        ({}, True),
        ({"finish_reason": "stop"}, True),
        ({"finish_reason": "tool_use"}, True),
        *(({"finish_reason": reason}, False) for reason in sorted(CUT_OFF)),
        ({"status": "abandoned"}, False),
        ({"status": "abandoned", "finish_reason": "stop"}, False),
    ],
)
def test_an_answer_that_was_cut_off_has_no_end(facts: dict[str, Any], ends: bool) -> None:
    """By a limit, by whichever name a server has for it, or because the client stopped reading."""
    sent = [{"role": "user", "content": "Hi"}]
    step = Step(
        id="a", call_id="a", protocol="openai.chat", messages=sent, completion=Completion(content="half"), **facts
    )
    bare = rt.Trajectory(steps=[step])
    bare.retokenize(Ending())
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [*b"half", *([Ending().eos_token_id] if ends else [])]


@pytest.mark.parametrize("sent", [["Hi"], [{"role": "user", "content": "Hi"}]])
def test_the_input_of_responses_is_rendered_in_both_its_forms(sent: list[Any]) -> None:
    """A text there is a user's message, not a raw prompt."""
    step = Step(id="a", call_id="a", protocol="openai.responses", messages=sent, completion=Completion(content="Ho"))
    report = rt.Trajectory(steps=[step]).retokenize(Ending())
    assert (report.retokenized, report.failed) == (["a"], {})
    assert step.prompt_token_ids is not None
    end = Ending().eos_token_id
    assert step.prompt_token_ids.tolist() == [*b"<user>Hi", end, *b"<assistant>"]
