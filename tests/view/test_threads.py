"""Which messages of a request are new, and which earlier step it continues."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.model import Completion, Step
from rollout_trace.view.threads import Link, children_after, threads_of

from .build import conversation, says, sent_back, step, user


def test_a_conversation_goes_on() -> None:
    assert threads_of(conversation().steps) == [Link(0, None, 0), Link(0, 0, 3)]


def test_an_answer_that_was_changed_is_shown_again() -> None:
    asked = [user("hi")]
    steps = [step(0, asked, says("hello")), step(1, [*asked, sent_back(says("Hello!")), user("more")], says("x"))]
    assert threads_of(steps)[1] == Link(0, 0, 1)


def test_choices_of_one_call_and_what_follows_either() -> None:
    asked = [user("hi")]
    one, two = says("one"), says("two")
    steps = [
        step(0, asked, one, call_id="c"),
        step(1, asked, two, call_id="c", choice=1),
        step(2, [*asked, sent_back(one), user("more")], says("x")),
    ]
    assert threads_of(steps) == [Link(0, None, 0), Link(0, None, 1, shown_by=0), Link(0, 1, 1)]


def test_a_fork_begins_a_thread_and_continues_the_step_that_it_left() -> None:
    asked = [user("hi")]
    answers = [says(str(at)) for at in range(3)]
    after_first = [*asked, sent_back(answers[0]), user("left")]
    after_second = [*after_first, sent_back(answers[1]), user("and left")]
    steps = [
        step(0, asked, answers[0]),
        step(1, after_first, answers[1]),
        step(2, after_second, answers[2]),
        step(3, [*asked, sent_back(answers[0]), user("right")], says("x")),
    ]
    assert threads_of(steps) == [Link(0, None, 0), Link(0, 0, 2), Link(0, 1, 4), Link(1, 0, 2)]


def test_a_request_that_was_tried_again_in_vain_does_not_hide_how_far_the_conversation_got() -> None:
    asked = [user("hi")]
    longer = [*asked, sent_back(says("one")), user("more")]
    steps = [
        step(0, asked, says("one")),
        step(1, longer, says("two")),
        step(2, asked, None),
        step(3, [*longer, sent_back(says("two")), user("and more")], says("three")),
        step(4, [*asked, sent_back(says("one")), user("left")], says("x")),
    ]
    assert threads_of(steps) == [
        Link(0, None, 0), Link(0, 0, 2), Link(0, None, 1, shown_by=0), Link(0, 1, 4), Link(1, 2, 2)
    ]  # fmt: skip


def test_a_new_conversation_hides_what_it_has_in_common_with_another() -> None:
    system = {"role": "system", "content": "Be brief."}
    steps = [step(0, [system, user("a")], says("1")), step(1, [system, user("b")], says("2"))]
    assert threads_of(steps) == [Link(0, None, 0), Link(1, None, 1, shown_by=0)]


def test_a_step_without_a_message_of_its_own_names_the_step_that_has_the_same_prompt() -> None:
    system, asked = {"role": "system", "content": "Be brief."}, user("hi")
    steps = [step(0, [system, asked], says("1")), step(1, [system, asked], says("2")), step(2, [system], says("3"))]
    # The third has all of its messages in common with others, and is not the same prompt: they are shown.
    assert threads_of(steps) == [Link(0, None, 0), Link(0, None, 2, shown_by=0), Link(1, None, 0)]
    text = [step(at, ["Once"], says(" upon"), protocol="openai.completions") for at in range(2)]
    assert threads_of(text)[1] == Link(0, None, 0, len("Once"), shown_by=0)


def test_two_agents_take_turns() -> None:
    one: list[Any] = [user("one")]
    two: list[Any] = [user("two")]
    steps = []
    for at in range(6):
        asked = (one, two)[at % 2]
        answer = says(f"answer {at}")
        steps.append(step(at, list(asked), answer))
        asked += [sent_back(answer), user(f"more {at}")]
    links = threads_of(steps)
    assert [link.thread for link in links] == [0, 1, 0, 1, 0, 1]
    assert [link.continues for link in links] == [None, None, 0, 1, 2, 3]


def test_responses_that_continue_one_by_its_id_send_new_messages_alone() -> None:
    steps = [
        step(0, [user("a")], says("1"), protocol="openai.responses", response_id="r0"),
        step(1, [user("b")], says("2"), protocol="openai.responses", sampling={"previous_response_id": "r0"}),
    ]
    assert threads_of(steps) == [Link(0, None, 0), Link(0, 0, 0)]


def test_a_text_prompt_continues_a_prompt_and_its_answer() -> None:
    steps = [
        step(0, ["Once"], says(" upon"), protocol="openai.completions"),
        step(1, ["Once upon a time"], says("."), protocol="openai.completions"),
    ]
    assert threads_of(steps) == [Link(0, None, 0), Link(0, 0, 0, len("Once upon"))]


def test_messages_that_are_not_known_begin_nothing() -> None:
    assert threads_of([step(0, [user("a")], says("1")), step(1, None, None)]) == [Link(0, None, 0), Link(0, None, 0)]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30))
def test_what_is_hidden_was_shown(choices: list[tuple[int, bool]]) -> None:
    """A step continues an earlier one at any place: what its link hides are messages and answers of that one."""
    steps: list[Step] = []
    answers: list[Completion] = []
    for at, (origin, is_changed) in enumerate(choices):
        answer = says(f"answer {at % 3}")
        if origin < at:
            back = sent_back(says("changed") if is_changed else answers[origin])
            messages = [*(steps[origin].messages or ()), back, user(f"go on {at % 2}")]
        else:
            messages = [user(f"begin {at % 2}")]
        steps.append(step(at, messages, answer))
        answers.append(answer)
    for one, link in zip(steps, threads_of(steps), strict=True):
        sent = list(one.messages or ())
        assert 0 <= link.repeated <= len(sent)
        assert link.repeated < len(sent) or link.shown_by is not None
        if link.continues is None:
            continue
        assert link.continues < one.index
        earlier = list(steps[link.continues].messages or ())
        assert sent[: min(link.repeated, len(earlier))] == earlier[: link.repeated]


def test_trajectories_inside_stand_after_the_step_in_which_they_began() -> None:
    steps = conversation().steps
    began = steps[0].started_at
    assert began is not None
    found = children_after(
        steps, [("a", "step-1", None), ("b", None, began.timestamp() + 0.1), ("c", None, None), ("d", "gone", None)]
    )
    assert found == {1: ["a"], 0: ["b"], -1: ["c", "d"]}
