"""In which order recorded calls may be asked for: one after another, and in parallel."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.exchange import Exchange
from rollout_trace.testing.matching import Matcher, MatchOptions, Unmatched
from tests.testing.matching_cases import Turn, exchange, request, same_request

CHAT = "openai.chat"


def asked(text: str, answer: str = "", *, at: float | None = 0.0, seconds: float = 0.5) -> Exchange:
    return exchange(CHAT, [Turn("user", text)], answer or f"answer to {text}", at=at, seconds=seconds)


def refused(found: Exchange | Unmatched) -> Unmatched:
    assert isinstance(found, Unmatched)
    return found


def test_a_call_waits_for_those_before_it() -> None:
    first, second, third = (asked(text, at=at) for at, text in enumerate(["a", "b", "c"]))
    matcher = Matcher([[first, second, third]])
    early = refused(matcher.take(same_request(third)))
    assert (early.reason, early.nearest) == ("order", third)
    assert early.text().startswith("call 1 came too early: it is the recorded call 3, and the recorded call 1 should")
    assert matcher.take(same_request(first)) is first
    late = refused(matcher.take(same_request(third)))
    assert "the recorded call 2 should come before it" in " ".join(late.text().split())
    assert matcher.take(same_request(second)) is second
    assert matcher.take(same_request(third)) is third


def test_a_call_waits_for_each_of_the_equal_ones_before_it() -> None:
    first, again, last = asked("a", "one"), asked("a", "two", at=1), asked("b", at=2)
    matcher = Matcher([[first, again, last]])
    assert matcher.take(same_request(first)) is first
    assert refused(matcher.take(same_request(last))).reason == "order"
    assert matcher.take(same_request(first)) is again
    assert matcher.take(same_request(last)) is last


def test_the_order_can_be_free() -> None:
    first, second = asked("a"), asked("b", at=1)
    matcher = Matcher([[first, second]], MatchOptions(order="free"))
    assert matcher.take(same_request(second)) is second
    assert matcher.take(same_request(first)) is first


@pytest.mark.parametrize(
    ("times", "is_ordered"),
    [
        ([(0, 1), (1, 1), (2, 1)], True),  # The next begins when the one before has ended.
        ([(0, 1), (0.999, 1), (2, 1)], False),
        ([(0, 1), (2, 1), (2.5, 1)], False),  # Two later ones are parallel: the threads may have begun before.
        ([(0, 10), (1, 1), (3, 1)], False),
        ([(None, 1), (1, 1), (3, 1)], False),  # It is not known.
    ],
)
def test_calls_that_overlapped_may_come_in_any_order(times: list[tuple[float | None, float]], is_ordered: bool) -> None:
    recorded = [asked(text, at=at, seconds=seconds) for text, (at, seconds) in zip("abc", times, strict=True)]
    found = Matcher([recorded]).take(same_request(recorded[2]))
    assert isinstance(found, Unmatched) if is_ordered else found is recorded[2]


def test_a_call_without_an_end_may_have_overlapped() -> None:
    first, second = Exchange(**{**vars(asked("a")), "duration": None}), asked("b", at=1)
    assert Matcher([[first, second]]).take(same_request(second)) is second
    matcher = Matcher([[second, Exchange(**{**vars(asked("a", at=2)), "duration": None})]])
    assert refused(matcher.take(same_request(first))).reason == "order"


def test_the_next_turn_of_a_conversation_does_not_overlap_it() -> None:
    # The end of a stream may be seen after the client has gone on.
    turns = [Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c")]
    recorded = [exchange(CHAT, turns[:1], at=0, seconds=1.1), exchange(CHAT, turns, at=1), asked("last", at=2)]
    assert refused(Matcher([recorded]).take(same_request(recorded[2]))).reason == "order"


def test_a_stream_ends_with_its_last_piece() -> None:
    stream = Exchange(**{**vars(asked("a", seconds=2)), "chunk_times": (0.1, 0.9)})
    recorded = [stream, asked("b", at=1)]
    assert refused(Matcher([recorded]).take(same_request(recorded[1]))).reason == "order"


def test_trajectories_do_not_wait_for_each_other() -> None:
    one, other = [asked("a"), asked("b", at=1)], [asked("c", at=2), asked("d", at=3)]
    matcher = Matcher([one, other])
    assert [matcher.take(same_request(call)) for call in (other[0], one[0], other[1], one[1])]
    assert matcher.unused() == []


def test_what_another_trajectory_asked_for_counts() -> None:
    # Equal first prompts cannot be told apart, so none of the two may wait for "its own".
    one, other = [asked("a"), asked("b", at=1)], [asked("a", at=2), asked("c", at=3)]
    matcher = Matcher([one, other])
    for call in (one[0], other[1], other[0], one[1]):
        assert isinstance(matcher.take(same_request(call)), Exchange)
    assert matcher.unused() == []


def attempts(answer: str, *, at: float = 0.0, call: str = "one") -> list[Exchange]:
    turns = [Turn("user", "a")]
    return [
        exchange(CHAT, turns, f"{answer}: wait", status=429, at=at, call=call),
        exchange(CHAT, turns, "", outcome="unreachable", at=at + 1, call=call),
        exchange(CHAT, turns, answer, at=at + 2, call=call),
    ]


def test_attempts_of_a_call_come_in_their_order_and_count_as_one() -> None:
    recorded = [*attempts("a"), asked("b", at=3)]
    matcher = Matcher([recorded])
    assert [matcher.take(same_request(one)) for one in recorded[:3]] == recorded[:3]
    found = refused(matcher.take(same_request(asked("c"))))
    assert found.text().startswith("call 2 was not recorded")
    assert "the recorded call 2" in found.text()


def test_attempts_stay_with_their_call_when_calls_are_parallel() -> None:
    one, other = attempts("first", call="one"), attempts("second", call="two", at=0.5)
    matcher = Matcher([[one[0], other[0], one[1], other[1], one[2], other[2]]])
    live = {"x": one, "y": other}
    given = {name: [] for name in live}  # type: dict[str, list[Exchange | Unmatched]]
    for name in "xyyxyx":
        given[name].append(matcher.take(same_request(one[0], call=name)))
    assert given == live


def in_turns(tasks: Sequence[Sequence[Exchange]], order: Sequence[int]) -> list[Exchange]:
    """One list of the tasks' calls, in which each number of ``order`` stands for a task's next call."""
    waiting = [list(task) for task in tasks]
    return [waiting[task].pop(0) for task in order]


TASKS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=5)


@given(TASKS, st.randoms(use_true_random=False), st.booleans())
def test_any_interleaving_replays_in_any_other(words: list[list[str]], chance: random.Random, parallel: bool) -> None:
    """Tasks whose requests are often equal, each in a trajectory of its own or all, in parallel, in one."""
    tasks = [[asked(word, at=None) for word in task] for task in words]
    order = [at for at, task in enumerate(tasks) for _ in task]
    recorded_order, replayed_order = chance.sample(order, len(order)), chance.sample(order, len(order))
    times = [at * (0.25 if parallel else 1) for at in range(len(order))]
    recorded = [
        Exchange(**{**vars(one), "name": f"{at}", "started_at": asked("", at=at).started_at, "duration": 0.5})
        for at, one in zip(times, in_turns(tasks, recorded_order), strict=True)
    ]
    by_task = [
        [one for one, of in zip(recorded, recorded_order, strict=True) if of == task] for task in range(len(tasks))
    ]
    matcher = Matcher([recorded] if parallel else by_task)
    given_answers = [matcher.take(same_request(one)) for one in in_turns(tasks, replayed_order)]
    assert all(isinstance(one, Exchange) for one in given_answers)
    assert len({one.name for one in given_answers if isinstance(one, Exchange)}) == len(recorded)
    assert matcher.unused() == []


def conversation(task: int, turns: int, start: float) -> list[Exchange]:
    """Calls of one task. Each third task begins as all others do, with an answer of its own."""
    said = [Turn("user", "Begin" if task % 3 == 0 else f"Task {task}")]
    calls = []
    for number in range(turns):
        answer = f"task {task}, turn {number}"
        calls.append(exchange(CHAT, said, answer, at=start + number))
        said = said_next(said, answer, f"recorded-{task}-{number}")
    return calls


def said_next(said: list[Turn], answer: str, call_id: str) -> list[Turn]:
    return [*said, Turn("assistant", answer), Turn("call", "{}", call_id), Turn("result", "done", call_id)]


def run(matcher: Matcher, task: int, turns: int) -> list[str]:
    """An agent: it puts what it was answered into its next request."""
    said, answers = [Turn("user", "Begin" if task % 3 == 0 else f"Task {task}")], []
    for number in range(turns):
        found = matcher.take(request(CHAT, said, call=f"{task}.{number}"))
        assert isinstance(found, Exchange), found.text()
        answer = answered(found)
        answers.append(answer)
        # An id that is not the recorded one, as frameworks make them up.
        said = said_next(said, answer, f"new-{task}-{number}")
    return answers


def answered(found: Exchange) -> str:
    text = found.response.decode().partition('"content": "')[2]
    return text.partition('"')[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["trajectories", "one"])
def test_eight_threads_and_a_hundred_tasks(seed: int, shape: str) -> None:
    chance = random.Random(seed)
    tasks = [conversation(task, 4, chance.uniform(0, 3)) for task in range(100)]
    in_time = sorted((call for task in tasks for call in task), key=lambda call: call.started_at or 0)
    matcher = Matcher(tasks if shape == "trajectories" else [in_time])
    numbers = list(range(100))
    chance.shuffle(numbers)
    begin = threading.Barrier(8)

    def work(own: Sequence[int]) -> list[list[str]]:
        begin.wait()
        return [run(matcher, task, 4) for task in own]

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(work, [numbers[at::8] for at in range(8)]))
    answers = sorted(answers for part in parts for answers in part)
    assert answers == sorted([f"task {task}, turn {number}" for number in range(4)] for task in range(100))
    assert matcher.unused() == []
