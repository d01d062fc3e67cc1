"""A trainer's logprobs beside the engine's: each fault that is put into one side is named.

Both sides are forward passes of the small model in `tests/data/tiny-model`; the faults are those that trainers had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.train.mismatch import token_roles
from tests.cli.command import command
from tests.data.model.qwen2 import Qwen2, log_softmax

if TYPE_CHECKING:
    from tests.data.model.qwen2 import Array

FOLDER = Path(__file__).parents[1] / "data" / "tiny-model"
RUNS, TURNS, PROMPT, ANSWER = 6, 2, 12, 10
NEWLINE = 198
Ids = list[int]


@cache
def conversations() -> list[list[tuple[Ids, Ids]]]:
    """Prompt and completion ids of each turn of each run; a prompt continues the turn before."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(RUNS):
        context, turns = random.integers(5, 2000, PROMPT).tolist(), []
        for _ in range(TURNS):
            answer = random.integers(5, 2000, ANSWER).tolist()
            turns.append((context, answer))
            context = [*context, *answer, *random.integers(5, 2000, 4).tolist()]
        found.append(turns)
    return found


class InHalfPrecision(Qwen2):
    """Weights and activations in bfloat16."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.weights = {name: rounded(values) for name, values in self.weights.items()}

    def _linear(self, name: str, x: Array) -> Array:
        return rounded(super()._linear(name, rounded(x)))

    def _norm(self, name: str, x: Array) -> Array:
        return rounded(super()._norm(name, x))


def rounded(values: Array) -> Array:
    """The nearest bfloat16: the first half of a float32."""
    bits = (values.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def updated(updates: int) -> Qwen2:
    """The model that many updates later."""
    random, model = np.random.default_rng(1), Qwen2(FOLDER)
    for name, values in model.weights.items():
        model.weights[name] = values + 0.01 * updates * values.std() * random.standard_normal(values.shape)
    return model


@cache
def distributions(model: str = "", newline: bool = False) -> list[list[Array]]:
    """[ANSWER, vocabulary] for each turn of each run: logprobs at temperature 1."""
    network = Qwen2(FOLDER) if not model else InHalfPrecision(FOLDER) if model == "half" else updated(int(model))
    more = [NEWLINE] if newline else []
    return [
        [network.logprobs([*prompt, *more, *answer])[len(prompt) + len(more) - 1 : -1] for prompt, answer in turns]
        for turns in conversations()
    ]


def of_answers(found: list[list[Array]]) -> list[list[Array]]:
    """[ANSWER]: of each distribution the logprob of the token that was sampled."""
    return [
        [each[np.arange(ANSWER), answer] for each, (_, answer) in zip(run, turns, strict=True)]
        for run, turns in zip(found, conversations(), strict=True)
    ]


def truncated(values: Array, answer: Ids, top_p: float) -> Array:
    """Renormalised over the likeliest tokens that have `top_p` together, and the one that was sampled."""
    found = []
    for row, sampled in zip(values, answer, strict=True):
        order = np.argsort(-row)
        kept = {*order[: int(np.searchsorted(np.cumsum(np.exp(row[order])), top_p)) + 1].tolist(), sampled}
        found.append(row[sampled] - np.log(np.exp(row[sorted(kept)]).sum()))
    return np.array(found)


def runs(
    trainer: list[list[Array]],
    engine: list[list[Array]] | None = None,
    facts: Callable[[int, int], Any] = lambda *_: {},
) -> list[rt.Trajectory]:
    """The trajectories, with the logprobs of both sides; ``facts``: more of a step, by run and turn."""
    engine = of_answers(distributions()) if engine is None else engine
    found = []
    for run, turns in enumerate(conversations()):
        steps = []
        for turn, (prompt, answer) in enumerate(turns):
            name = f"{run}-{turn}"
            given = {"policy_version": 5, **facts(run, turn)}
            both = engine[run][turn], trainer[run][turn]
            steps.append(step_of(name, prompt, answer, *both, index=turn, **given))
        found.append(rt.Trajectory(id=f"run-{run}", steps=steps))
    return found


def step_of(name: str, prompt: Ids, answer: Ids, logprobs: Any, trainer: Any, **facts: Any) -> Step:
    ids: dict[str, Any] = {"prompt_token_ids": prompt, "completion_token_ids": answer, "logprobs": logprobs}
    step = Step(id=name, call_id=name, **{"token_source": "engine", **ids, **facts})
    step.trainer_logprobs = trainer
    return step


def each(change: Callable[[Array], Array]) -> list[list[Array]]:
    return [[change(values) for values in run] for run in of_answers(distributions())]


def mixed(*sides: list[list[Array]]) -> list[list[Array]]:
    """The first of the sides for the first runs, and so on."""
    return [sides[run * len(sides) // RUNS][run] for run in range(RUNS)]


def cut() -> list[list[Array]]:
    """Under top-p."""
    return [
        [truncated(values, answer, 0.9) for values, (_, answer) in zip(run, turns, strict=True)]
        for run, turns in zip(distributions(), conversations(), strict=True)
    ]


def cold() -> list[list[Array]]:
    """At temperature 0.7."""
    return of_answers([[log_softmax(values / 0.7) for values in run] for run in distributions()])


def one_of_other_weights() -> list[list[Array]]:
    """The third run alone by other weights."""
    others = of_answers(distributions("5"))
    return [others[run] if run == 2 else values for run, values in enumerate(of_answers(distributions()))]


def faults() -> Iterator[tuple[str, str, Callable[[], list[rt.Trajectory]]]]:
    """Name, the code that is expected, and the runs."""
    yield "the mask a token late", "shifted", lambda: runs(each(lambda values: np.roll(values, 1)))
    yield "the mask a token early", "shifted", lambda: runs(each(lambda values: np.roll(values, -1)))
    yield "bfloat16", "precision", lambda: runs(of_answers(distributions("half")))
    yield "five updates behind, not told", "other_weights", lambda: runs(of_answers(distributions("5")))
    yield (
        "weights one and five versions old", "stale",
        lambda: runs(
            mixed(of_answers(distributions("5")), of_answers(distributions("1")), of_answers(distributions("half"))),
            facts=lambda run, _: {"policy_version": (0, "4", 5)[run * 3 // RUNS]},
        ),
    )  # fmt: skip
    yield (
        "weights one version old, beside bfloat16", "stale",
        lambda: runs(
            mixed(of_answers(distributions("1")), of_answers(distributions("half"))),
            facts=lambda run, _: {"policy_version": (4, 5)[run * 2 // RUNS]},
        ),
    )  # fmt: skip
    yield "top-p by the engine alone", "truncated", lambda: runs(of_answers(distributions()), cut())
    yield "top-p by the trainer alone", "truncated", lambda: runs(cut())
    yield "temperature 0.7 taken for 1", "temperature", lambda: runs(of_answers(distributions()), cold())
    yield "1 taken for 0.7", "temperature", lambda: runs(cold())
    yield "a newline more in the prompt", "prompt", lambda: runs(of_answers(distributions(newline=True)))
    yield "one row of six", "one_row", lambda: runs(one_of_other_weights())
    grammar = {"sampling": {"response_format": {"type": "json_object"}}}
    yield (
        "a grammar",
        "constrained",
        lambda: runs(
            [[values[0], values[1] - 1.5] for values in of_answers(distributions())],
            facts=lambda _, turn: grammar if turn else {},
        ),
    )


@pytest.mark.parametrize(("code", "made"), [pytest.param(*one[1:], id=one[0]) for one in faults()])
def test_a_fault_is_named(code: str, made: Callable[[], list[rt.Trajectory]]) -> None:
    found = rt.mismatch(made())
    assert [cause.code for cause in found.causes] == [code]


def pairs(engine: Array, trainer: Array, length: int) -> list[rt.Trajectory]:
    """Trajectories of a step each, of so many tokens."""
    found = []
    for at in range(0, len(engine), length):
        both = [np.minimum(side[at : at + length], 0) for side in (engine, trainer)]
        step = step_of(f"s{at}", [1], [2] * len(both[0]), *both)
        found.append(rt.Trajectory(steps=[step]))
    return found


def unsure_at_first(random: np.random.Generator) -> Array:
    """50 answers of 20 tokens: of most the engine is sure, of the first it is not."""
    engine = -random.gamma(0.5, 1.0, (50, 20))
    engine[:, 0] = -random.uniform(1, 3, 50)
    return engine.ravel()


def sure_with(changes: dict[int, float], count: int = 1000) -> tuple[Array, Array]:
    """Both sides, equal but for these places."""
    engine = -np.random.default_rng(0).uniform(0, 2, count)
    trainer = engine.copy()
    trainer[list(changes)] -= np.array(list(changes.values()))
    return engine, trainer


def lookalikes() -> Iterator[tuple[str, list[str], Callable[[], list[rt.Trajectory]]]]:
    """Name, the codes that are expected, and the runs: what looks like another cause."""
    random = np.random.default_rng(1)
    engine = unsure_at_first(random)
    noise = random.standard_normal(len(engine))
    for share in (0.005, 0.01, 0.05):
        fine = pairs(engine, engine * (1 + share * np.clip(noise, -2, 2)), 20)
        yield f"noise of {share:.1%} of a logprob", ["precision"], lambda fine=fine: fine  # type: ignore[misc]
    yield "noise by entropy", ["other_weights"], lambda: pairs(engine, engine + 0.15 * noise * np.sqrt(-engine), 20)
    one = np.array([-0.01] * 4)
    yield "one first token", ["other_weights"], lambda: pairs(one, one - [0.4, 0, 0, 0], 4)
    sure = np.array([-0.001] * 6)
    yield "one end token", ["other_weights"], lambda: pairs(sure, sure - [0, 0, 0, 0, 0, 0.5], 6)
    ones = np.full(12, -0.01)
    yield "one end token of 12", ["other_weights"], lambda: pairs(ones, ones - 0.5 * (np.arange(12) == 11), 12)
    raw = -random.gamma(0.3, 0.3, 1500)
    yield "a greedy engine", ["other_weights"], lambda: pairs(np.zeros(1500), raw, 3)
    surely = np.where(random.random(200) < 0.2, -random.uniform(0.5, 3, 200), -1e-5)
    yield "a shift of sure tokens", ["shifted"], lambda: pairs(surely, np.roll(surely, 1) - 2e-4, 200)
    both = dict(zip(range(50, 1000, 200), [3.0, -0.4, 4.0, 3.0, 2.0], strict=True))
    yield "five tokens both ways", ["other_weights"], lambda: pairs(*sure_with(both), 100)
    down = dict.fromkeys(range(50, 1000, 100), 0.3)
    yield "ten tokens of 1000, one way", ["precision"], lambda: pairs(*sure_with(down), 100)


@pytest.mark.parametrize(("codes", "made"), [pytest.param(*one[1:], id=one[0]) for one in lookalikes()])
def test_what_looks_like_another_cause(codes: list[str], made: Callable[[], list[rt.Trajectory]]) -> None:
    assert [cause.code for cause in rt.mismatch(made()).causes] == codes


def test_steps_without_a_token_of_both_sides_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    steps = [step_of("cut", [1], [2], [-1.0], None), step_of("empty", [1], [], [], [])]
    with rt.JSONLWriter(file) as writer:
        writer.write(rt.Trajectory(id="run", steps=steps))
    cut_row = {"trajectory_id": "run", "step_ids": ["cut"], "spans": [(1, 1)], "token_ids": [1]}
    rt.trainer_report(file, [cut_row], [[-1.0]])
    read = list(rt.read(file))
    assert read[0].steps[0].trainer_logprobs is not None
    found = rt.mismatch(read)
    assert (found.steps, found.steps_left_out, found.whole) == (0, 1, None)
    found = rt.mismatch([*read, *pairs(np.array([-1.0]), np.array([-1.0]), 1)])
    assert (found.steps, found.steps_left_out, found.causes) == (1, 1, ())


def test_a_ratio_beyond_a_float(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    step = step_of("a", [1], [2], [-2000.0], None)
    with rt.JSONLWriter(file) as writer:
        writer.write(rt.Trajectory(id="run", steps=[step]))
    rt.annotate(file, "run", steps={"a": {"trainer_logprobs": [-0.5]}})
    table, as_json = [command(tmp_path, "mismatch", file.name, *more).out for more in ([], ["--json"])]
    assert re.search(r"all +1 +inf +-2e\+03 +inf", table)
    whole = json.loads(as_json, parse_constant=pytest.fail)["whole"]
    assert (whole["ratio"], whole["k3"], whole["greatest_difference"]) == (None, None, 1999.5)


def test_two_passes_that_agree_have_no_cause() -> None:
    found = rt.mismatch(runs(of_answers(distributions())))
    assert (found.causes, found.steps, found.steps_left_out) == ((), RUNS * TURNS, 0)
    assert found.whole is not None
    assert found.whole.ratio == pytest.approx(1, abs=1e-6)


def test_versions_that_the_trainer_is_ahead_of_are_stale() -> None:
    old = runs(of_answers(distributions("1")))
    (cause,) = rt.mismatch(old, trainer_version=6).causes
    assert (cause.code, cause.tokens) == ("stale", RUNS * TURNS * ANSWER)
    assert "1 old" in cause.message


def test_only_what_stands_behind_a_drift() -> None:
    question = {"role": "user", "content": "?"}
    trajectories = []
    for run in range(3):
        said = [[question], [question, {"role": "assistant", "content": "a"}, question]]
        steps = []
        for turn, prompt in enumerate(([1, 2], [1, 2, 3, 9, 8, 7])):
            engine, answer = [-1.0, -2.0, -0.5, -3.0], Completion(content="a")
            trainer = engine if not turn else [-0.7, -2.3, -0.8, -2.8]
            facts = {"index": turn, "messages": said[turn], "completion": answer}
            steps.append(step_of(f"{run}-{turn}", prompt, [3, 4, 5, 6], engine, trainer, **facts))
        trajectories.append(rt.Trajectory(steps=steps))
    assert [len(rt.drift(one)) for one in trajectories] == [1, 1, 1]
    (cause,) = rt.mismatch(trajectories).causes
    assert (cause.code, cause.tokens) == ("behind_drift", 12)


def test_the_figures_are_the_definitions() -> None:
    facts = {"engine": "vllm", "policy_version": 3, "completion": Completion(content="x")}
    step = step_of("a", [1], [2, 3], [-1.0, -2.0], [-1.5, -1.0], **facts)
    found = rt.mismatch(rt.Trajectory(steps=[step]))
    difference = np.array([-0.5, 1.0])
    assert found.whole is not None
    assert found.whole.ratio == pytest.approx(np.exp(difference).mean())
    assert found.whole.k1 == pytest.approx(-difference.mean())
    assert found.whole.k3 == pytest.approx((np.exp(difference) - 1 - difference).mean())
    assert (found.whole.mean_difference, found.whole.greatest_difference) == (0.75, 1.0)
    assert {name: [part.value for part in parts] for name, parts in found.parts.items()} == {
        "position": ["0", "1-3"], "turn": ["0"], "role": ["text"], "policy_version": ["3"], "engine": ["vllm"],
        "constrained": ["no"],
    }  # fmt: skip


def test_nothing_to_compare() -> None:
    step = step_of("a", [1], [2], [-1.0], None)
    found = rt.mismatch(rt.Trajectory(steps=[step]))
    assert (found.steps, found.steps_left_out, found.whole, found.causes) == (0, 1, None, ())
    with pytest.raises(TypeError, match="expected"):
        rt.mismatch("rollouts.jsonl")  # type: ignore[arg-type]


ROLES = [
    (Completion(content="It is 4."), ["It", " is", " 4", ".", "<|im_end|>"], "stop", "text text text text end"),
    (Completion(content="It is 4."), ["It", " is", " 4", "."], "length", "text text text text"),
    (Completion(content="It is 4."), ["It", " is", " 4", "."], "stop", "text text text text"),
    (
        Completion(content="4", reasoning="two and two"),
        ["<think>", "two and two", "</think>", "\n", "4", "<|im_end|>"], "stop",
        "thinking thinking thinking thinking text end",
    ),
    (
        Completion(content="Look:", tool_calls=(ToolCall(name="add", arguments='{"a": 2}'),)),
        ["Look:", "<tool_call>", '{"name": "add", ', '"arguments": {"a": 2}}', "</tool_call>", "<|im_end|>"],
        "tool_calls", "text tool tool tool tool end",
    ),
    (Completion(tool_calls=(ToolCall(name="add", arguments="{}"),)), None, "tool_calls", "tool tool tool end"),
]  # fmt: skip


@pytest.mark.parametrize(("completion", "texts", "finish", "expected"), ROLES)
def test_the_role_of_each_token(completion: Completion, texts: list[str] | None, finish: str, expected: str) -> None:
    ids = list(range(len(expected.split())))
    step = step_of("a", [], ids, None, None, completion=completion, token_texts=texts, finish_reason=finish)
    named = {"tool": "tool call", "end": "end token"}
    assert token_roles(step) == [named.get(one, one) for one in expected.split()]
