"""``redact=``: what a rule changes is changed everywhere, and no ids stay of a text that was changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings

import rollout_trace as rt
from rollout_trace import guard
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import EXTRAS, ExtraIssue, JSONText, TopTokens
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Attempt, ErrorInfo, Step, Task, ToolCall, ToolRun
from rollout_trace.data.redact import StepRedaction
from rollout_trace.data.tokens import TokenStore
from rollout_trace.file.encode import encode
from rollout_trace.record.redaction import FAILED, Redactor
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer
from tests.amount import examples
from tests.file.test_format import with_extras
from tests.strategies import trajectories

SECRET = "alice@example.org"
MAIL = r"[\w.+-]+@[\w-]+\.\w+"
MASK = "[redacted]"

NOT_CHANGED = {
    "": {"schema", "id", "name", "episode_id", "parent_id", "parent_step_id", "group_id", "status", "rewards",
         "metrics", "segments", "arrays"},
    "task": {"id"},
    "steps": {"id", "call_id", "agent", "protocol", "engine", "model", "response_model", "response_id", "token_source",
              "logprobs_mode", "finish_reason", "status", "policy_version", "cost"},
    "steps.tokens": {"top_tokens", "sampling_mask", "policy_spans"},
    "steps.token_issue": {"code"},
    "steps.extra_issues": {"field", "code"},
    "steps.exact_turn": {"step_id", "reason"},
    "steps.completion": {"role"},
    "steps.completion.tool_calls": {"id", "type"},
    "steps.attempts": {"content_type"},
    "tool_runs": {"tool_call_id", "name", "step_id"},
}  # fmt: skip
"""Fields of a line that rules do not change, by the place of their record."""


def texts_of(value: Any, place: str = "") -> Iterator[str]:
    """The texts of a line that a rule sees, keys of free objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in NOT_CHANGED.get(place, ()):
                yield key
                yield from texts_of(item, f"{place}.{key}" if place else key)


SPOTS = re.compile(r"plain|</script>|数")


@settings(max_examples=examples(500))
@given(trajectories())
def test_text_and_ids_agree_and_untouched_steps_stay(trajectory: rt.Trajectory) -> None:
    before = encode(trajectory)
    clean = Redactor(SPOTS).apply(trajectory)
    line = encode(clean)
    assert encode(trajectory) == before
    assert not [text for text in texts_of(json.loads(line)) if SPOTS.search(text)]
    gone: list[bytes] = []
    for old, new in zip(trajectory.steps, clean.steps, strict=True):
        changed = [
            name for name in ("messages", "tools", "sampling", "completion", "stop_reason") if differ(old, new, name)
        ]
        if {"completion", "stop_reason"} & {*changed} and old.completion_token_ids is not None:
            gone.append(old.completion_token_ids.tobytes())
        redacted = new.token_issue is not None and new.token_issue.code == "redacted"
        if changed:
            assert redacted
        if redacted:
            assert not new.trainable
            assert (new.prompt_token_ids, new.completion_token_ids, new.logprobs, new.top_logprobs) == (None,) * 4
            assert (new.request_bytes, new.response_bytes, new.token_source) == (None, None, None)
            assert new.token_texts is None
            continue
        assert new.token_texts == old.token_texts
        for name in ("prompt_token_ids", "completion_token_ids", "logprobs"):
            assert (getattr(new, name) is None) == (getattr(old, name) is None)
            assert getattr(new, name) is None or np.array_equal(getattr(new, name), getattr(old, name), equal_nan=True)
        assert old.top_logprobs == new.top_logprobs or SPOTS.search(repr(old.top_logprobs))
        assert new.trainable == old.trainable
        if new is not old:
            assert old != new, "a copy of a step in which nothing changed"
    if before == line:
        assert clean is trajectory
    untouched = [step for step in clean.steps if any(step is one for one in trajectory.steps)]
    alone = [rt.Trajectory(id="t", steps=[step]) for step in untouched]
    assert [encode(one) for one in alone] == [encode(Redactor().apply(one)) for one in alone]


def differ(old: Step, new: Step, name: str) -> bool:
    one, other = getattr(old, name), getattr(new, name)
    return bool(one != other)


def step(number: int = 0, **facts: Any) -> Step:
    whole: dict[str, Any] = {
        "id": f"s{number}", "call_id": f"c{number}", "index": number, "token_source": "engine",
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5], "logprobs": [-1.0, -0.5, -0.25],
        "completion": rt.Completion(content="fine"), "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip
    return Step(**{**whole, **facts})


@dataclass
class Person:
    name: str
    mail: str


class Mails(Enum):
    ALICE = SECRET


class Opaque:
    def __repr__(self) -> str:
        return f"<of {SECRET}>"


PLACES: dict[str, tuple[Any, bool]] = {
    # place: an object with the secret there, whether the step's ids go
    "messages[0].content": (step(messages=[{"role": "user", "content": SECRET}]), True),
    "messages[1].content[0].text": (step(messages=[{}, {"content": [{"type": "text", "text": SECRET}]}]), True),
    "messages[0].input.alice@example.org (key)": (step(messages=[{"input": {SECRET: 1}}]), True),
    "tools[0].function.description": (step(tools=[{"function": {"description": SECRET}}]), True),
    "sampling.stop[1]": (step(sampling={"temperature": 1.0, "stop": ["a", SECRET]}), True),
    "sampling.user": (step(sampling={"user": SECRET}), True),
    "completion.content": (step(completion=rt.Completion(content=f"ask {SECRET}")), True),
    "completion.content[0].text": (step(completion=rt.Completion(content=[{"text": SECRET}])), True),
    "completion.reasoning": (step(completion=rt.Completion(reasoning=SECRET)), True),
    "completion.refusal": (step(completion=rt.Completion(refusal=SECRET)), True),
    "completion.extra.annotations[0].url": (
        step(completion=rt.Completion(extra={"annotations": [{"url": SECRET}]})), True,
    ),
    "completion.tool_calls[1].arguments": (
        step(completion=rt.Completion(tool_calls=(ToolCall(), ToolCall(arguments=f'{{"to": "{SECRET}"}}')))), True,
    ),
    "stop_reason": (step(stop_reason=SECRET), True),
    "error.message": (step(status="error", error=ErrorInfo(type="E", message=SECRET)), False),
    "attempts[0].error.message": (step(attempts=(Attempt(error=ErrorInfo(type="E", message=SECRET)),)), False),
    "metadata.by": (step(metadata={"by": SECRET}), False),
    "extra.metrics.by[0]": (step(extra={"metrics": {"by": [SECRET]}}), False),
    "exact_turn.detail": (step(exact_turn=ExactTurn(reason="media", detail=SECRET)), False),
    "extra_issues[0].message": (
        step(extra_issues=(ExtraIssue(field="routed_experts", code="malformed", message=SECRET),)), False,
    ),
    "request_bytes": (step(request_bytes=json.dumps({"a": SECRET}).encode()), False),
    "response_bytes": (step(response_bytes=SECRET.encode()), False),
    "tool_runs[0].arguments": (ToolRun(arguments=f'{{"to": "{SECRET}"}}'), False),
    "tool_runs[0].arguments.to": (ToolRun(arguments={"to": SECRET}), False),
    "tool_runs[0].result": (ToolRun(result=f"sent to {SECRET}"), False),
    "tool_runs[0].result[1].mail": (ToolRun(result=[1, Person("alice", SECRET)]), False),
    "tool_runs[0].result.file": (ToolRun(result={"file": Path("home") / SECRET}), False),
    "tool_runs[0].result.one": (ToolRun(result={"one": Mails.ALICE}), False),
    "tool_runs[0].result[0]": (ToolRun(result=(Opaque(),)), False),
    "tool_runs[0].result.raw": (ToolRun(result={"raw": SECRET.encode()}), False),
    "tool_runs[0].result.names[0]": (ToolRun(result={"names": np.array([SECRET])}), False),
    "tool_runs[0].error.message": (ToolRun(error=ErrorInfo(type="E", message=SECRET)), False),
}  # fmt: skip


def holding(thing: Any) -> rt.Trajectory:
    if isinstance(thing, ToolRun):
        return rt.Trajectory(steps=[step()], tool_runs=[thing])
    return rt.Trajectory(steps=[thing])


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_changed_and_named(place: str) -> None:
    thing, ids_go = PLACES[place]
    trajectory = holding(thing)
    seen: list[str] = []

    def hide(text: str, where: str) -> str:
        if SECRET in text:
            seen.append(where)
        return text.replace(SECRET, "[mail]")

    assert SECRET.encode() in encode(trajectory)
    clean = Redactor(hide).apply(trajectory)
    assert seen == [place]
    assert SECRET.encode() not in encode(clean)
    assert b"[mail]" in encode(clean) or place.endswith("_bytes")
    assert (clean.steps[0].completion_token_ids is None) == ids_go
    assert clean.steps[0].trainable != ids_go
    assert SECRET.encode() in encode(trajectory), "the user's own object was changed"
    by_pattern = encode(Redactor(MAIL).apply(trajectory))
    assert SECRET.encode() not in by_pattern
    assert MASK.encode() in by_pattern or place.endswith("_bytes")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", {"to": [SECRET]}),
        ("task", Task(id="t", data={"question": SECRET})),
        ("error", ErrorInfo(type="ValueError", message=SECRET)),
        ("stop_reason", f"no answer of {SECRET}"),
        ("environment", {"command": ["send.py", SECRET]}),
    ],
)
def test_a_trajectory_s_own_fields_are_changed(field: str, value: Any) -> None:
    trajectory = rt.Trajectory(**{"steps": [step()], field: value})
    clean = Redactor(MAIL).apply(trajectory)
    assert SECRET.encode() not in encode(clean)
    assert clean.id == trajectory.id
    assert clean.steps is trajectory.steps


def test_ids_and_names_are_not_changed() -> None:
    trajectory = rt.Trajectory(
        id=SECRET, name=SECRET, group_id=SECRET, task=Task(id=SECRET),
        steps=[step(agent=SECRET, model=SECRET, completion=rt.Completion(tool_calls=(ToolCall(id=SECRET),)))],
        tool_runs=[ToolRun(tool_call_id=SECRET, name=SECRET)],
    )  # fmt: skip
    assert Redactor(MAIL).apply(trajectory) is trajectory


def test_a_body_that_is_no_text_is_removed_too() -> None:
    trajectory = rt.Trajectory(steps=[step(response_bytes=b"\xff" + SECRET.encode())])
    (clean,) = Redactor(MAIL).apply(trajectory).steps
    assert clean.response_bytes is None
    assert clean.completion_token_ids is not None


def test_alternatives_that_hold_a_match_are_removed() -> None:
    top = [[{"token": "Bob", "logprob": -1.0}], [{"token": "fine", "logprob": -0.5}], []]
    (clean,) = Redactor("Bob").apply(rt.Trajectory(steps=[step(top_logprobs=top)])).steps
    assert clean.top_logprobs is None
    assert clean.trainable
    assert clean.completion_token_ids is not None


def test_texts_of_tokens_go_with_the_ids() -> None:
    """Where the completion changes, and where a match is in them alone: a tool call as it was sampled, say."""
    spelled = ["B", "o", "b"]
    cases: tuple[dict[str, Any], ...] = (
        {"completion": rt.Completion(content="Bob"), "token_texts": spelled},
        {"completion": rt.Completion(content="fine"), "token_texts": spelled},
        {"messages": [{"role": "user", "content": "Bob"}], "token_texts": ["f", "in", "e"]},
    )
    for fields in cases:
        given = step(**fields)
        (clean,) = Redactor("Bob").apply(rt.Trajectory(steps=[given])).steps
        assert (clean.token_texts, clean.completion_token_ids, clean.trainable) == (None, None, False)
        assert clean.token_issue is not None
        assert clean.token_issue.code == "redacted"
        assert b"o\x7fb" not in encode(rt.Trajectory(steps=[clean]))
    kept = rt.Trajectory(steps=[step(token_texts=["f", "in", "e"])])
    assert Redactor("Bob").apply(kept) is kept


def test_alternatives_that_are_json_are_looked_at_one_by_one() -> None:
    """Their ids go with them; what stands for other texts stays."""
    top = TopTokens(np.array([[3], [4], [5]], np.int32), np.zeros((3, 1), np.float32))
    experts = np.zeros((4, 1, 1), np.uint8)
    for text, is_kept in (
        (b'[[{"token":"Bob"}],[],[]]', False),
        (b'[[{"token":"fine"}],[],[]]', True),
        (b'[[{"token":"\\ud83d"}],[{"token":"Bob"}],[]]', False),
        (b'[[{"token":"\\ud83d"}],[{"token":"fine"}],[]]', True),
    ):
        given = step(top_logprobs=JSONText(text), top_tokens=top, routed_experts=experts)
        (clean,) = Redactor("Bob").apply(rt.Trajectory(steps=[given])).steps
        assert (clean is given) == is_kept
        assert (clean.top_logprobs is None, clean.top_tokens is None) == (not is_kept, not is_kept)
        assert clean.completion_token_ids is not None
        assert clean.routed_experts is not None


def test_a_redacted_step_has_no_extras() -> None:
    """They are of tokens that are not the step's any more; an earlier step keeps its own, in shared storage too."""
    first, second = with_extras().steps
    second = replace(second, completion=rt.Completion(content=SECRET))
    kept, clean = Redactor(MAIL).apply(rt.Trajectory(steps=[first, second])).steps
    assert kept is first
    assert all(getattr(second, name) is not None for name in EXTRAS)
    assert all(getattr(clean, name) is None for name in EXTRAS)
    assert (clean.extra, clean.extra_issues) == (second.extra, second.extra_issues)
    line = encode(rt.Trajectory(steps=[kept, clean]))
    assert [one["shape"][0] for one in json.loads(line)["arrays"]] == [21, 20, 20, 20]


def test_a_redacted_step_has_no_lists_in_extra() -> None:
    """They may be ids, or pieces of the text: no rule finds it in them. Those of another step stay."""
    kept = {"metrics": {"queue_time_ms": 0.5}, "note": "of fine"}
    extra = {**kept, "gen_tokens": [4, 5], "choices": {"output": [[-0.5, 4, "a"]]}, "more": {"a": {"b": (4,)}}}
    for text, completion in ((SECRET, SECRET), (MASK, "fine")):
        given = step(completion=rt.Completion(content=completion), extra={**extra, "note": f"of {text}"})
        (clean,) = Redactor(MAIL).apply(rt.Trajectory(steps=[given])).steps
        note = {"note": f"of {MASK}"}
        assert clean.extra == ({**kept, **note} if completion == SECRET else {**extra, **note})
    (clean,) = (
        Redactor(MAIL)
        .apply(rt.Trajectory(steps=[step(completion=rt.Completion(content=SECRET), extra={"gen_tokens": [4, 5]})]))
        .steps
    )
    assert clean.extra is None


def test_whole_numbers_are_changed_where_they_are_the_user_s() -> None:
    card = 4111111111111111
    trajectory = rt.Trajectory(
        steps=[step(sampling={"seed": card, "max_tokens": 16384})],
        tool_runs=[ToolRun(result={"card": card, "true": True, "part": 0.5})],
        metadata={"n": card},
    )
    clean = Redactor(r"\b\d{16}\b").apply(trajectory)
    assert clean.tool_runs[0].result == {"card": MASK, "true": True, "part": 0.5}
    assert clean.metadata == {"n": MASK}
    assert clean.steps is trajectory.steps


def test_keys_that_become_one_are_numbered() -> None:
    trajectory = rt.Trajectory(metadata={"a@b.c": 1, "d@e.f": 2, "g@h.i": {"j@k.l": 3}})
    clean = Redactor(MAIL).apply(trajectory)
    assert clean.metadata == {MASK: 1, f"{MASK} (2)": 2, f"{MASK} (3)": {MASK: 3}}


def test_a_value_that_contains_itself_is_looked_at_as_it_is_written() -> None:
    inside: dict[str, Any] = {"mail": SECRET}
    inside["self"] = inside
    clean = Redactor(MAIL).apply(rt.Trajectory(tool_runs=[ToolRun(result=inside)]))
    assert SECRET.encode() not in encode(clean)


class Failing:
    """Functions that fail on the secret, by name of how."""

    @staticmethod
    def raises(text: str, place: str) -> str:
        if SECRET in text:
            raise ValueError(f"what to do with {text}?")
        return text

    @staticmethod
    def returns_none(text: str, place: str) -> Any:
        return None if SECRET in text else text

    @staticmethod
    def returns_bytes(text: str, place: str) -> Any:
        return text.encode() if SECRET in text else text


@pytest.mark.parametrize("how", ["raises", "returns_none", "returns_bytes"])
@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith("_bytes")])
def test_what_a_function_fails_on_is_never_written(how: str, place: str, caplog: pytest.LogCaptureFixture) -> None:
    guard.reset()
    trajectory = holding(PLACES[place][0])
    redactor = Redactor(getattr(Failing, how))
    line = encode(redactor.apply(trajectory))
    assert SECRET.encode() not in line
    assert FAILED.encode() in line
    redactor.apply(trajectory)
    assert rt.stats().redaction_failures == 2
    (record,) = caplog.records
    assert SECRET not in record.getMessage()
    assert "redact=" in record.getMessage()
    guard.reset()


def test_rules_are_applied_in_order() -> None:
    rules: Any = [r"alice", re.compile("@EXAMPLE", re.I), lambda text, place: text.replace(f"{MASK}{MASK}", "[them]")]
    trajectory = rt.Trajectory(metadata={"to": SECRET})
    assert Redactor(rules).apply(trajectory).metadata == {"to": "[them].org"}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, r"redact is 3 \(int\); give a regular expression"),
        (b"x", TypeError, "give a regular expression"),
        ({"a": "b"}, TypeError, "give a regular expression"),
        ([r"ok", 3], TypeError, r"redact has 3 \(int\)"),
        ("a(", ValueError, r"redact has 'a\(', which is not a regular expression"),
        (re.compile(b"a"), TypeError, "an expression for bytes"),
        ("a*", ValueError, "matches the empty text"),
        (lambda text: text, TypeError, r"takes a text and its place, \(text, place\)"),
    ],
)
def test_a_mistake_raises_at_once(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Redactor(given)


def test_an_async_function_is_refused() -> None:
    async def hide(text: str, place: str) -> str:
        return text

    with pytest.raises(TypeError, match="the async function"):
        Redactor(hide)  # type: ignore[arg-type]


def stored(tokens: TokenStore, *ids: Any) -> Any:
    return tokens.add(*ids)


def sent(messages: ListStore, items: list[Any]) -> Any:
    return messages.add_items(items)


def conversation(turns: int, secret_at: int) -> rt.Trajectory:
    """A recorded conversation whose requests repeat all that was said, with the secret in one answer."""
    messages, tokens = ListStore(), TokenStore()
    told: list[Any] = []
    ids: list[int] = []
    steps = []
    for turn in range(turns):
        told = [*told, {"role": "user", "content": f"question {turn}"}]
        said = SECRET if turn == secret_at else f"answer {turn}"
        ids = [*ids, 1, turn]
        prompt, completion = stored(tokens, np.array(ids, np.int32), np.array([2, 1000 + turn], np.int32))
        steps.append(
            Step(
                id=f"s{turn}", call_id=f"c{turn}", index=turn, messages=sent(messages, list(told)),
                completion=rt.Completion(content=said), prompt_token_ids=prompt, completion_token_ids=completion,
                logprobs=np.array([-1.0, -1.0], np.float32),
            )
        )  # fmt: skip
        ids = [*ids, 2, 1000 + turn]
        told = [*told, {"role": "assistant", "content": said}]
    return rt.Trajectory(steps=steps)


def test_later_prompts_lose_their_ids_and_earlier_steps_stay() -> None:
    trajectory = conversation(10, 4)
    clean = Redactor(MAIL).apply(trajectory)
    assert [one is other for one, other in zip(clean.steps, trajectory.steps, strict=True)] == [True] * 4 + [False] * 6
    assert [one.trainable for one in clean.steps] == [True] * 4 + [False] * 6
    assert [one.prompt_token_ids is None for one in clean.steps] == [False] * 4 + [True] * 6
    kept, all_of_them = json.loads(encode(clean)), json.loads(encode(trajectory))
    assert kept["steps"][:4] == all_of_them["steps"][:4]
    assert all(1004 not in segment["ids"] for segment in kept["segments"])
    (sequence,) = clean.sequences()
    assert len(sequence.step_ids) == 4


def test_a_prompt_of_ids_that_repeats_a_redacted_answer_loses_them() -> None:
    answer = step(0, messages=None, completion=rt.Completion(content=SECRET))
    on = step(1, messages=None, prompt_token_ids=[1, 2, 3, 4, 5, 6])
    sent = step(2, messages=None, prompt_token_ids=None, sampling={"input_ids": [1, 2, 3, 4, 5, 6], "seed": 1})
    listed = step(3, messages=[[1, 2, 3, 4, 5, 6]], prompt_token_ids=None)
    other = step(4, messages=None, prompt_token_ids=[1, 2, 3, 4, 6])
    clean = Redactor(MAIL).apply(rt.Trajectory(steps=[answer, on, sent, listed, other]))
    assert [one.trainable for one in clean.steps] == [False, False, False, False, True]
    assert clean.steps[2].sampling == {"seed": 1}
    assert clean.steps[3].messages is None
    assert clean.steps[4] is other


def test_a_prompt_whose_bytes_hold_an_answer_between_its_ids_keeps_them() -> None:
    """``[256, 0]`` has the bytes of ``[1]``, one byte further on."""
    answer = step(0, completion=rt.Completion(content=SECRET), completion_token_ids=[1], logprobs=[-1.0])
    other = step(1, prompt_token_ids=[256, 0])
    again = step(2, prompt_token_ids=[256, 0, 1])
    clean = Redactor(MAIL).apply(rt.Trajectory(steps=[answer, other, again]))
    assert [one.trainable for one in clean.steps] == [False, True, False]
    assert clean.steps[1] is other


def test_steps_that_come_one_by_one_are_changed_as_all_at_once() -> None:
    trajectory, redactor = conversation(10, 4), Redactor(MAIL)
    one_by_one = StepRedaction(redactor.change)
    assert [one_by_one.step(one) for one in trajectory.steps] == redactor.apply_steps(trajectory.steps)


def test_each_message_is_looked_at_once() -> None:
    """A function is called for each text once, however many requests repeat it."""

    def looks(turns: int) -> int:
        count = 0

        def hide(text: str, place: str) -> str:
            nonlocal count
            count += 1
            return text.replace(SECRET, MASK)

        Redactor(hide).apply(conversation(turns, turns // 2))
        return count

    assert looks(200) - looks(100) == looks(300) - looks(200)


class Writer:
    """A writer that redacts, as a recording does."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.file, self.redactor = rt.JSONLWriter(path), redactor

    def write(self, trajectory: rt.Trajectory) -> None:
        self.file.write(self.redactor.apply(trajectory))


def scripted(request: Mapping[str, Any]) -> Any:
    said = request["messages"][-1]["content"]
    if said == "call":
        return Reply(tool_calls=[("mail", json.dumps({"to": SECRET}))])
    if said == "fail":
        return Fault(status=400, body={"error": {"message": f"{SECRET} is not allowed"}})
    return f"write to {SECRET}" if said == "who?" else "fine"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_recorded_run(tmp_path: Path, stream: bool, suffix: str) -> None:
    path = tmp_path / f"r{suffix}"
    asked: Any = {"model": "m", "logprobs": True, "stream": stream, "extra_body": {"return_token_ids": True}}
    with ScriptedServer(scripted) as server, rt.recording(Writer(path, Redactor(MAIL))):
        client = rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0), keep_bytes=True)
        with client, rt.trajectory() as trajectory:
            for said in ("hello", "who?", "call", "fail", "bye", f"thanks, {SECRET}"):
                try:
                    answer: Any = client.chat.completions.create(**asked, messages=[{"role": "user", "content": said}])
                    for _ in answer if stream else ():
                        pass
                except openai.BadRequestError:
                    pass
    (kept,) = rt.read(path)
    assert [one.trainable for one in kept.steps] == [True, False, False, True, True, False]
    assert SECRET not in repr([one.__getstate__() for one in kept.steps])
    spelled = np.array(ByteTokenizer().encode(SECRET), np.int32).tobytes()
    for one, original in zip(kept.steps, trajectory.steps, strict=True):
        if one.trainable and one.status == "ok":
            assert one == replace(original)
        for ids in (one.prompt_token_ids, one.completion_token_ids):
            assert ids is None or spelled not in ids.tobytes()
    assert kept.steps[3].error is not None
    assert kept.steps[3].error.message == f"{MASK} is not allowed"
    assert kept.steps[3].response_bytes is None
    # In memory the texts stay.
    completion = trajectory.steps[1].completion
    assert completion is not None
    assert completion.content == f"write to {SECRET}"
