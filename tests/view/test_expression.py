"""Expressions on the fields of a trajectory: what they give, and that they can do nothing else."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import ErrorInfo
from rollout_trace.view import expression_values
from rollout_trace.view.expression import Expression
from rollout_trace.view.expression_names import FIELDS, NAMES
from rollout_trace.view.expression_values import ExpressionError
from tests.amount import examples
from tests.cli.runs import run_of

RUN = run_of(1, 3)
UNSCORED = rt.Trajectory(id="u", name="sub", status="failed", error=ErrorInfo(type="Timeout", message="60 s"))
ODD = rt.Trajectory(
    id="odd", name="\u00fcnder \U0001f41b", reward=-0.25, rewards={"format": 0.0, "b c": 1.0}, metrics={"turns": 3.0},
    status="aborted", metadata={"note": "look"}, started_at=datetime(2026, 11, 25, 10, 0, 0, 250_000, timezone.utc),
)  # fmt: skip
QUOTED = rt.Trajectory(id="it", name='it\'s "x"\n', reward=1.0, parent_id="u", episode_id="e")
LISTED = [*(run_of(group, index) for group in range(2) for index in range(2)), UNSCORED, ODD, QUOTED]
CASES = json.loads((Path(__file__).parents[1] / "data" / "expressions.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expression"])
def test_the_table_that_the_page_is_tested_with(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(ExpressionError):
            Expression(case["expression"])
        return
    expression, ids, fails = Expression(case["expression"]), [], []
    for one in LISTED:
        try:
            ids += [one.id] if expression(one) else []
        except ExpressionError:
            fails.append(one.id)
    assert (ids, fails) == (case["ids"], case.get("fails", []))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward > 0.5 and n_steps < 20", True),
        ("0 < reward <= 1", True),
        ("rewards.format == 0.5 and rewards['format'] == 0.5", True),
        ("metadata.split == 'train'", True),
        ("metadata.split.deeper", ExpressionError),
        ("metadata.nothing.deeper is None", True),
        ("task == 'task1' and task_id == task and task.id == task and task.data.level == 1", True),
        ("group in ['g/1', 'g/2'] and group not in ('x',)", True),
        ("startswith(group, 'g/') and endswith(group, '1') and matches(group, '^g/\\d$')", True),
        ("'WORLD' in lower(text)", False),
        ("'question 1' in text and 'answer 2' in text and 'too slow' in text", True),
        ("any(step.latency > 0.4 for step in steps) and all(step.status == 'ok' for step in steps)", True),
        ("sum(len(step.completion_token_ids) for step in steps)", 6),
        ("max(step.usage.output for step in steps if step.index > 0)", 2),
        ("min([]) is None and max(3, 1) == 3 and min(logprob for logprob in steps[0].logprobs) == -0.5", True),
        ("[run.error.type for run in tool_runs]", ["Timeout"]),
        ("tool_runs[0].error.message == 'too slow' and tool_runs[5] is None", True),
        ("started_at > '2026-11-21T08:02' and started_at < '2026-11-21T08:04'", True),
        ("seconds / n_steps * 2 - 5 // 2 % 7 ** 1", 18.0),
        ("-reward == -1 and abs(-2) == 2 and not False", True),
        ("'yes' if reward else 'no'", "yes"),
        ("models == ['m'] and agents == ['solver'] and tools == ['bash']", True),
        ("rows == 1 and trained == 6 and findings == drift", True),
        ("input_tokens + output_tokens", 4 + 7 + 10 + 6),
        ("grade is None and len(findings) == 0 and 'truncated' not in findings", True),
        ("id + '!' + name", "t13!solver"),
    ],
)
def test_values(text: str, expected: Any) -> None:
    if expected is ExpressionError:
        with pytest.raises(ExpressionError, match="trajectory t13: the text 'train' has no field 'deeper'"):
            Expression(text).value(RUN)
    else:
        assert Expression(text).value(RUN) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward > 0", False),
        ("reward <= 0", False),
        ("reward == 1", False),
        ("reward != 1", False),
        ("reward in [1, 2]", False),
        ("reward not in [1, 2]", False),
        ("'a' in task", False),
        ("not reward > 0", True),
        ("reward is None and reward == None and None == reward", True),
        ("reward is not None or reward != None", False),
        ("reward + 1 is None and -reward is None and abs(reward) is None", True),
        ("lower(task) is None and len(rewards) is None", True),
        ("matches(task, 'x') or startswith(task, '')", False),
        ("rewards.format is None and rewards['format'] is None and steps[0] is None", True),
        ("sum(x for x in rewards) == 0", True),
        ("any(step.reward for step in steps)", False),
        ("error == 'Timeout: 60 s' and error.type == 'Timeout' and 'Timeout' in error", True),
        ("task.data is None", True),
    ],
)
def test_what_is_not_known(text: str, expected: Any) -> None:
    assert Expression(text).value(UNSCORED) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewrd > 1", "Did you mean reward?"),
        ("status == completed", 'A text is written in quotes: "completed"'),
        ("reward == none", "Did you mean None?"),
        ("reward is null or true", "Did you mean None?"),
        ("reward = 1", "did you mean == ?"),
        ("reward >", "not an expression in Python's syntax at character"),
        ("", "the expression is empty"),
        ("  ", "the expression is empty"),
        ("\0", "null bytes"),
        ("open('x')", "there is no function 'open'"),
        ("name.upper()", "there is no function"),
        ("(lambda: 1)()", "there is no function"),
        ("__import__('os')", "there is no function '__import__'"),
        ("lambda: 1", "is not allowed"),
        ("f'{name}'", "is not allowed"),
        ("{1: 2}", "is not allowed"),
        ("(x := 1)", "is not allowed"),
        ("[*steps]", "is not allowed"),
        ("b'x'", "is not allowed"),
        ("1j", "is not allowed"),
        ("...", "is not allowed"),
        ("~reward", "is not allowed"),
        ("1 << 9", "is not allowed"),
        ("await steps", "is not allowed"),
        ("name[0:2]", "is not allowed"),
        ("[a for a in steps for b in steps]", "only one `for`"),
        ("[1 for (a, b) in steps]", "only one `for`"),
        ("[1 for reward in steps]", "reward has a meaning already"),
        ("any(step.x for step in steps) and step", "there is no name 'step'"),
        ("matches(name, '(')", "'(' is not a regular expression"),
        ("len()", "len is called as len(x)"),
        ("len(name, x=1)", "len is called as len(x)"),
        ("not " * 200 + "reward", "nested too deeply: it has more than 100 levels"),
        ("(" * 1000 + "1" + ")" * 1000, "not an expression"),
        ("+".join(["1"] * 200), "nested too deeply: it has more than 100 levels"),
        ("+".join(["1"] * 4000), "expression"),  # nested too deeply: for Python, from 3.14 on for us
        ("1" * 10_001, "at most 10000 are allowed"),
        ("9" * 5000, "not an expression"),
    ],
)
def test_what_is_refused_before_a_file_is_read(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward > 'a'", "the number 1.0 cannot be compared with the text 'a'"),
        ("steps > 1", "cannot be compared with the number 1"),
        ("reward in 'abc'", "expected a text before `in`"),
        ("1 in reward", "expected a list, got the number 1.0"),
        ("[x for x in name]", "expected a list, got the text 'solver'"),
        ("steps[0].__class__", "a Step has no field '__class__'"),
        ("steps[0].request_bytes", "a Step has no field 'request_bytes'"),
        ("name.__class__", "the text 'solver' has no field '__class__'"),
        ("steps.append", "has no field 'append'"),
        ("steps['a']", "have numbers, not the text 'a'"),
        ("reward[0]", "has no items"),
        ("reward / 0", "is divided by zero"),
        ("9 ** 9 ** 9", "a number is too large"),
        ("9.0 ** 9 ** 9", "a number is too large"),
        ("(0 - 8) ** 0.5", "is not a real number"),
        ("'a' * 1000000", "* needs numbers"),
        ("'%1000000000d' % 5", "% needs numbers"),
        ("-name", "- needs a number"),
        ("lower(1)", "lower needs a text"),
        ("abs(name)", "abs needs a number"),
        ("len(1)", "has no length"),
        ("sum([name])", "expected numbers"),
        ("max([1, name])", "expected numbers, or texts"),
        ("matches(name, metadata.split + '(')", "is not a regular expression"),
    ],
)
def test_what_cannot_be_evaluated_names_the_trajectory(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match="cannot be evaluated for trajectory t13: ") as caught:
        Expression(text).value(RUN)
    assert message in str(caught.value)


def test_work_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression_values, "MAX_WORK", 1000)
    squared = "any(any(any(any(any(a + b + c + d + e == 1 for e in x) for d in x) for c in x) for b in x) for a in x)"
    with pytest.raises(ExpressionError, match="takes more than 1000 operations"):
        Expression(squared.replace("x", f"[{', '.join(map(str, range(100)))}]")).value(RUN)
    run = rt.Trajectory(metadata={"text": "x" * 600_000, "number": 7**1400})
    for text, message in (
        ("metadata.text + metadata.text", "a text is too long"),
        ("metadata.number * metadata.number", "a number is too large"),
        ("sum([metadata.number, metadata.number * metadata.number])", "a number is too large"),
    ):
        with pytest.raises(ExpressionError, match=message):
            Expression(text).value(run)


def test_every_name_has_a_value_for_any_trajectory() -> None:
    for name in NAMES:
        for run in (RUN, UNSCORED, rt.Trajectory()):
            Expression(name).value(run)


def test_the_fields_are_those_of_the_objects() -> None:
    for kind, names in FIELDS.items():
        for name in names:
            assert name in kind.__slots__ or hasattr(kind, name), (kind, name)  # type: ignore[attr-defined]


_numbers = st.integers(-9, 9) | st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda number: round(number, 3))
_arithmetic = st.recursive(
    _numbers.map(lambda number: f"({number})"),
    lambda inner: st.tuples(
        inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<", ">=", "==", "!=", "and", "or"]), inner
    ).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
    max_leaves=8,
)


@settings(max_examples=examples(900))
@given(_arithmetic)
def test_numbers_are_what_python_makes_of_them(text: str) -> None:
    try:
        expected = eval(text)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divided by zero"):
            Expression(text).value(RUN)
        return
    found = Expression(text).value(RUN)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


_WORDS = (
    "x for in if else not and ( ) [ ] . , == < + ** * % 1 0.5 'a' None len any matches __class__ lambda : := { } @ is"
)
_words = st.sampled_from([*NAMES, *_WORDS.split(), "\n"])


@settings(max_examples=examples(1500))
@given(st.lists(_words, max_size=12).map(" ".join) | st.text(max_size=40))
@example("'\ud800'")
@example("\\")
@example("#")
@example("reward\nreward")
def test_any_text_has_a_value_or_an_error_of_its_own(text: str) -> None:
    with suppress(ExpressionError):
        Expression(text).value(RUN)
