"""Asserts on what an agent did, of every protocol, and the messages with which they fail."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data.model import Completion, ErrorInfo, ToolCall, ToolRun
from rollout_trace.testing import InferredToolRun, RecordedRollout, Reply, ScriptedServer
from tests.testing import rollouts
from tests.view.build import conversation, says, sent_back, step, user, with_tokens


def rollout_of(*trajectories: rt.Trajectory) -> RecordedRollout:
    return RecordedRollout(lambda: trajectories)


def message_of(check: Any, *given: Any, **named: Any) -> str:
    """The message of an assert that fails, without the conversation below it."""
    with pytest.raises(AssertionError) as raised:
        check(*given, **named)
    text, blank, picture = str(raised.value).partition("\n\n")
    assert blank
    assert picture
    return text


@pytest.mark.parametrize("protocol", rollouts.AGENTS)
def test_tools_that_the_agent_ran_itself_are_inferred(protocol: str) -> None:
    rollout = rollouts.run(protocol)
    paris, rome = rollout.tool_runs
    assert isinstance(paris, InferredToolRun)
    assert [(run.name, run.result) for run in (paris, rome)] == [
        ("weather", "5 degrees in Paris"),
        ("weather", "4 degrees in Rome"),
    ]
    assert rollout.assert_called("weather", city="Rome") == [rome]
    assert rollout.assert_called("weather", times=2) == [paris, rome]
    assert rollout.assert_called_in_order(("weather", {"city": "Paris"}), "weather") == [paris, rome]
    assert [call.name for call in rollout.tool_calls] == ["weather", "weather"]
    assert paris.step_id == rollout.steps[0].id


@pytest.mark.parametrize("protocol", rollouts.AGENTS)
def test_what_the_last_answer_says_and_how_it_ended(protocol: str) -> None:
    rollout = rollouts.run(protocol)
    assert rollout.text == rollouts.ANSWER
    assert rollout.assert_finished("stop") is rollout.steps[-1]
    assert rollout.assert_finished() is rollout.steps[-1]
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert len(rollout.assert_steps(2)) == 2
    assert rollout.usage.output == 132
    rollout.assert_no_errors()
    first = rollout_of(replace_steps(rollout.trajectory, rollout.steps[:1]))
    assert first.text == "Let me look."
    first.assert_finished("tool_calls")
    assert first.tool_runs == []
    assert [run.result for run in first.assert_called("weather", times=2)] == [None, None]


def replace_steps(trajectory: rt.Trajectory, steps: list[rt.Step], **fields: Any) -> rt.Trajectory:
    return rt.Trajectory(name=trajectory.name, steps=steps, **fields)


def test_a_rollout_is_read_while_the_agent_runs() -> None:
    with ScriptedServer(["one", "two"]) as server, rt.trajectory("outer") as outer:
        rollout = rollout_of(outer)
        assert str(rollout).splitlines()[1:] == [f"{'':14}no call to a model was recorded"]
        with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none")) as client:
            for text in ("one", "two"):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Count."}])
                assert rollout.text == text
        rollout.reward = 1
        assert rollout.trajectory.is_open
    assert outer.reward == 1.0


def test_recorded_runs_are_taken_for_their_calls() -> None:
    both = says(None, ("calculator", '{"expression": "2 + 2"}'), ("search", '{"query": "x"}'))
    start = conversation()
    result = {"role": "tool", "tool_call_id": "call-search", "content": "found"}
    second = step(1, [*(start.steps[0].messages or ()), sent_back(both), result], says("4"), finish_reason="stop")
    steps = [replace(start.steps[0], completion=both), second]
    own = replace(start.tool_runs[0], step_id=None)
    unasked = ToolRun(name="cleanup", arguments={})
    for recorded in (own, replace(own, tool_call_id=None)):
        runs = rollout_of(replace_steps(start, steps, tool_runs=[unasked, recorded])).tool_runs
        assert [(run.name, run.result) for run in runs] == [("calculator", "4"), ("search", "found"), ("cleanup", None)]
        assert runs[0] is recorded
        assert runs[2] is unasked


def test_ids_of_calls_that_every_turn_repeats() -> None:
    """Some servers call each turn's first call `call_0`."""
    messages: list[Any] = [user("Add.")]
    steps = []
    for at in range(3):
        answer = Completion(tool_calls=(ToolCall(id="call_0", name="add", arguments=f'{{"n": {at}}}'),))
        steps.append(step(at, list(messages), answer))
        messages += [sent_back(answer), {"role": "tool", "tool_call_id": "call_0", "content": f"result {at}"}]
    steps.append(step(3, list(messages), says("Done.")))
    runs = rollout_of(rt.Trajectory(steps=steps)).tool_runs
    assert [(run.arguments, run.result) for run in runs] == [(f'{{"n": {at}}}', f"result {at}") for at in range(3)]


def test_results_of_a_conversation_that_was_summarised_are_found_by_their_ids() -> None:
    first = Completion(tool_calls=(ToolCall(id="call_a", name="add", arguments="{}"),))
    result = {"role": "tool", "tool_call_id": "call_a", "content": "4"}
    later = [user("A summary."), sent_back(first), result]
    steps = [step(0, [user("Add.")], first), step(1, later, says("4")), step(2, later, says("4"))]
    assert [run.result for run in rollout_of(rt.Trajectory(steps=steps)).tool_runs] == ["4"]


def test_a_result_that_is_marked_as_an_error() -> None:
    called = Completion(tool_calls=(ToolCall(id="t1", name="read", arguments="{}"),))
    block = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": "no such file", "is_error": True}
    messages = [user("Read."), {"role": "assistant", "content": [block]}, {"role": "user", "content": [failed]}]
    steps = [step(0, messages[:1], called, protocol="anthropic.messages"),
             step(1, messages, says("It is not there."), protocol="anthropic.messages")]  # fmt: skip
    rollout = rollout_of(rt.Trajectory(steps=steps))
    (run,) = rollout.tool_runs
    assert run.error == ErrorInfo(type="ToolError", message="no such file")
    assert "tool read: ToolError: no such file" in message_of(rollout.assert_no_errors)


class Matcher:
    """A matcher of a library for tests: `==` is its own, and it can be called."""

    def __call__(self) -> Matcher:
        return self

    def __eq__(self, other: object) -> bool:
        return other == 4

    __hash__ = None  # type: ignore[assignment]


CALL = ToolRun(name="search", arguments='{"query": "weather in Paris", "top": 4, "times": 2}')


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"query": "weather in Paris"},
        {"query": re.compile("Paris$"), "top": 4},
        {"query": lambda text: "Paris" in text},
        {"query": "weather in Paris".__eq__},
        {"query": str, "top": int},
        {"top": Matcher()},
        {"arguments": {"times": 2}, "top": 4},
        {"arguments": re.compile("weather")},
        {"times": 1},
    ],
)
def test_arguments_that_match(expected: Any) -> None:
    assert rollout_of(rt.Trajectory(tool_runs=[CALL])).assert_called("search", **expected) == [CALL]


@pytest.mark.parametrize(
    "expected",
    [
        {"query": "weather"},
        {"query": re.compile("Rome")},
        {"query": lambda text: "Rome" in text},
        {"top": re.compile("4")},
        {"query": int},
        {"query": Matcher()},
        {"arguments": {"times": 3}},
        {"arguments": "weather in Paris"},
        {"limit": None},
        {"times": 2},
    ],
)
def test_arguments_that_do_not(expected: Any) -> None:
    rollout = rollout_of(rt.Trajectory(tool_runs=[CALL]))
    message = message_of(rollout.assert_called, "search", **expected)
    assert message.splitlines()[1:] == ["Its calls:", "  search(query='weather in Paris', top=4, times=2)"]
    if "times" not in expected:
        rollout.assert_not_called("search", **expected)


def test_names_of_tools() -> None:
    custom = ToolRun(name="python", arguments="print(1)")
    rollout = rollout_of(rt.Trajectory(tool_runs=[CALL, custom, ToolRun(result=1)]))
    assert rollout.assert_called(re.compile("s.*h")) == [CALL]
    assert rollout.assert_called("python", "print(1)") == [custom]
    rollout.assert_not_called(re.compile("sear"))
    assert message_of(rollout.assert_not_called, "search", top=4) == (
        "expected no call of search(top=4); 1 call matched.\n"
        "Its calls:\n"
        "  search(query='weather in Paris', top=4, times=2)"
    )  # fmt: skip
    assert message_of(rollout.assert_called, "fetch") == (
        "expected fetch to be called; no call did.\n"
        "Calls of any tool:\n"
        "  search(query='weather in Paris', top=4, times=2)\n"
        "  python(print(1))\n"
        "  ?()"
    )
    assert message_of(rollout_of(rt.Trajectory()).assert_called, "fetch").endswith("\nNo tool was called.")


def test_an_order_of_calls() -> None:
    names = ["search", "fetch", "search", "answer"]
    rollout = rollout_of(rt.Trajectory(tool_runs=[ToolRun(name=name, arguments={}) for name in names]))
    rollout.assert_called_in_order("search", "search", "answer")
    rollout.assert_called_in_order()
    assert message_of(rollout.assert_called_in_order, "search", "answer", "fetch").splitlines()[0] == (
        "expected calls in this order: search, answer, fetch; fetch was not called after answer."
    )
    assert message_of(rollout.assert_called_in_order, ("search", {"q": 1})).splitlines()[0] == (
        "expected calls in this order: search(q=1); search(q=1) was not called."
    )


def test_numbers_of_steps() -> None:
    rollout = rollout_of(conversation())
    rollout.assert_steps(at_least=2, at_most=2)
    rollout.assert_steps(at_least=0)
    assert message_of(rollout.assert_steps, 1) == "expected 1 step, found 2."
    assert message_of(rollout.assert_steps, at_most=0) == "expected at most 0 steps, found 2."
    assert message_of(rollout.assert_steps, at_least=3) == "expected at least 3 steps, found 2."
    with pytest.raises(TypeError, match="needs a number"):
        rollout.assert_steps()


def test_endings() -> None:
    whole = conversation()
    last = whole.steps[1]
    ended = {
        "length": ("length", "max_tokens", "MAX_TOKENS", "max_output_tokens"),
        "stop": ("stop", "end_turn", "STOP"),
        "tool_calls": ("tool_calls", "tool_use"),
    }
    for meaning, reasons in ended.items():
        for reason in reasons:
            rollout = rollout_of(replace_steps(whole, [replace(last, finish_reason=reason)]))
            rollout.assert_finished(meaning)
            rollout.assert_finished(reason)
            for other in ended.keys() - {meaning}:
                assert message_of(rollout.assert_finished, other) == (
                    f"expected the finish reason {other!r}, found {reason!r}."
                )
            if meaning == "length":
                assert "that is no limit" in message_of(rollout.assert_finished)
            else:
                rollout.assert_finished()
    none = rollout_of(replace_steps(whole, [replace(last, finish_reason=None)]))
    assert message_of(none.assert_finished, "stop") == "expected the finish reason 'stop', but none was recorded."
    message_of(none.assert_finished)


def test_a_call_that_failed() -> None:
    failed = replace(conversation().steps[1], completion=None, status="error", finish_reason=None,
                     error=ErrorInfo(type="RateLimitError", message="slow \x1b[31mdown", status=429))  # fmt: skip
    rollout = rollout_of(replace_steps(conversation(), [conversation().steps[0], failed],
                                       error=ErrorInfo(type="ValueError", message="no answer")))  # fmt: skip
    why = r"its status is 'error', RateLimitError (HTTP 429): slow \x1b[31mdown."
    assert message_of(rollout.assert_finished) == f"expected the last step to finish: {why}"
    assert message_of(lambda: rollout.text) == f"the last step has no answer: {why}"
    assert message_of(rollout.assert_no_errors).splitlines() == [
        "expected no errors, found 2:",
        f"  step 1: {why}",
        "  solver: ValueError: no answer",
    ]


def test_nothing_recorded() -> None:
    empty = rollout_of(rt.Trajectory())
    for check in (empty.assert_finished, empty.assert_no_drift, empty.assert_trainable, lambda: empty.text):
        assert "no call to a model was recorded" in message_of(check)
    assert (empty.messages, empty.tool_runs, empty.tool_calls, empty.usage.input) == ([], [], [], 0)
    with pytest.raises(AssertionError, match="nothing was recorded"):
        _ = rollout_of().trajectory


def test_drift() -> None:
    whole = conversation()
    whole_rollout = rollout_of(whole)
    whole_rollout.assert_no_drift()
    assert len(whole_rollout.assert_trainable()) == 1
    tokens = with_tokens([1, 2, 3, 44, 5, 6], [7, 8, 9])
    drifted = rollout_of(replace_steps(whole, [whole.steps[0], replace(whole.steps[1], **tokens)]))
    assert len(drifted.drift()) == 1
    assert message_of(drifted.assert_no_drift).splitlines() == [
        "expected no drift, found 1 place:",
        "  step 1: its prompt leaves step 0 at token 3 (retokenized: its text became other ids than those it came "
        "from): expected [4, 5], found [44, 5, 6].",
    ]


def test_what_keeps_steps_from_training() -> None:
    whole = conversation()
    without = [replace(one, completion_token_ids=None, prompt_token_ids=None, logprobs=None) for one in whole.steps]
    local = rollout_of(replace_steps(whole, [replace(one, engine="vllm") for one in without]))
    assert message_of(local.assert_trainable).splitlines() == [
        "expected a rollout that can be trained on:",
        "  step 0, step 1: ids_missing: completion_token_ids is None. Ask the server (engine 'vllm') for token ids and "
        "logprobs; rt.probe(client) says what it sends.",
    ]
    assert "no step has token ids, so drift cannot be seen" in message_of(local.assert_no_drift)
    unknown = rollout_of(replace_steps(whole, without))
    assert 'rt.instrument(engine="vllm")' in message_of(unknown.assert_trainable)
    no_logprobs = rollout_of(replace_steps(whole, [replace(one, logprobs=None) for one in whole.steps]))
    assert "logprobs_missing: it has ids without logprobs" in message_of(no_logprobs.assert_trainable)
    assert len(no_logprobs.assert_trainable(logprobs=False)) == 1
    hosted = rollouts.run("messages")
    assert "sends no token ids: run the agent against one that does" in message_of(hosted.assert_trainable)
    whole.steps[0].advantage = [1.0]
    assert "step 0: advantage_invalid: " in message_of(rollout_of(whole).assert_trainable)
    excluded = conversation()
    for one in excluded.steps:
        one.trainable = False
    assert "none of 2 steps can" in message_of(rollout_of(excluded).assert_trainable)


def test_steps_that_need_no_ids_do_not_fail_a_trainable_rollout() -> None:
    whole = conversation()
    failed = step(2, None, None, status="error", error=ErrorInfo(type="E", message="m"))
    whole.steps = [*whole.steps, failed]
    assert len(rollout_of(whole).assert_trainable()) == 1


def test_trajectories_that_the_agent_opened_inside() -> None:
    with ScriptedServer(lambda _: Reply("ok")) as server:
        with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm") as client:
            with rt.trajectory("outer") as outer, rt.trajectory("inner") as inner:
                for _ in range(2):
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}])
    rollout = rollout_of(outer, inner)
    assert rollout.trajectory is outer
    assert rollout.steps == inner.steps
    assert rollout.text == "ok"
    assert len(rollout.assert_trainable()) == 2
    assert rollout.usage.input == inner.n_input_tokens
    assert [one.step_id for one in rollout.check() if one.code == "reward_missing"] == [None, None]
    assert str(rollout).count("ok  [stop]") == 2


def test_the_test_s_own_line_is_shown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import rollout_trace as rt
        from rollout_trace.testing import RecordedRollout

        ROLLOUT = RecordedRollout(lambda: [rt.Trajectory()])

        def test_called():
            ROLLOUT.assert_called("search")  # line 7

        def test_text():
            assert ROLLOUT.text == "4"  # line 10
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--tb=short")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["test_*.py:7: in test_called", "E   AssertionError: expected search to be called*"])
    result.stdout.fnmatch_lines(["test_*.py:10: in test_text", "E   AssertionError: the rollout has no step*"])
    result.stdout.no_fnmatch_line("*rollout.py*: in *")


pytest_plugins = ("pytester",)
