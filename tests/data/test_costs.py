"""Totals of tokens and money: each call once, and nothing made up. The figures are worked out by hand."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import JSONLWriter, read
from rollout_trace.data.costs import Price, PriceTable
from rollout_trace.data.model import Completion, Cost, ErrorInfo, Step, Usage
from rollout_trace.data.trajectory import Trajectory
from tests.strategies import PROFILE

SAID = Completion(content="4")
REFUSED: dict[str, Any] = {"status": "error", "error": ErrorInfo(type="RateLimitError", message="slow down")}
TABLE = PriceTable({"gpt-4o": Price(2.5, 10, cache_read=1.25), "claude-*": Price(3, 15, 0.3, 3.75)})


def step(call: str, choice: int = 0, *, completion: Completion | None = SAID, **facts: Any) -> Step:
    return Step(id=f"{call}.{choice}", call_id=call, choice=choice, completion=completion, **facts)


def tokens(*steps: Step) -> tuple[int | None, int | None, int | None, int | None]:
    all_of = Trajectory(steps=list(steps))
    return all_of.n_input_tokens, all_of.n_output_tokens, all_of.n_cache_read_tokens, all_of.n_cache_write_tokens


# Tokens


def test_a_call_counts_once_however_many_choices_repeat_its_usage() -> None:
    usage = Usage(input=100, output=30, cache_read=64, cache_write=0)
    two = [step("a", choice, usage=usage, prompt_token_ids=[1] * 100) for choice in (0, 1)]
    assert tokens(*two, step("b", usage=Usage(input=7, output=5, cache_read=0, cache_write=2))) == (107, 35, 64, 2)


def test_without_usage_token_ids_count() -> None:
    choices = [step("a", n, prompt_token_ids=[1, 2, 3], completion_token_ids=[4] * (n + 1)) for n in (0, 1)]
    assert tokens(*choices, step("b", usage=Usage(input=10, output=20))) == (13, 23, None, None)


def test_prompts_that_differ_within_a_call_all_count() -> None:
    """A list of prompts for openai.completions: two of them, and two choices of each."""
    prompts = ([1, 2, 3], [1, 2, 3], [4], [4])
    choices = [step("a", n, prompt_token_ids=ids, completion_token_ids=[5]) for n, ids in enumerate(prompts)]
    assert tokens(*choices)[:2] == (4, 4)


def test_a_count_that_usage_lacks_is_taken_from_the_ids() -> None:
    one = step("a", usage=Usage(output=5), prompt_token_ids=[1, 2], completion_token_ids=[3])
    assert tokens(one) == (2, 5, None, None)


@pytest.mark.parametrize(
    "unknown",
    [
        step("b"),
        step("b", status="abandoned"),
        step("b", completion=None),
        step("b", status="superseded"),
        step("b", prompt_token_ids=[], usage=Usage(cache_read=1, cache_write=1), completion=SAID),
    ],
    ids=["ok", "abandoned", "not-decoded", "superseded", "no-completion-ids"],
)
def test_one_call_of_unknown_output_makes_the_sum_unknown(unknown: Step) -> None:
    known = step("a", usage=Usage(input=1, output=1, cache_read=1, cache_write=1))
    assert tokens(known, unknown)[1] is None


def test_a_choice_whose_ids_are_withheld_makes_the_sum_unknown() -> None:
    known, withheld = step("a", prompt_token_ids=[1], completion_token_ids=[2]), step("a", 1, prompt_token_ids=[1])
    assert tokens(known, withheld) == (1, None, None, None)


def test_calls_that_failed_without_usage_and_cached_answers_add_nothing() -> None:
    usage = Usage(input=10, output=2, cache_read=0, cache_write=0)
    failed = step("b", completion=None, **REFUSED)
    cached = step("c", usage=usage, status="cached")
    assert tokens(step("a", usage=usage), failed, cached) == (10, 2, 0, 0)


def test_a_call_that_failed_with_usage_counts() -> None:
    assert tokens(step("a", completion=None, usage=Usage(input=10, output=0), **REFUSED))[:2] == (10, 0)


def test_no_calls_took_no_tokens_and_have_no_cost() -> None:
    assert tokens() == (0, 0, 0, 0)
    assert Trajectory().cost is None


def test_an_empty_completion_is_known() -> None:
    assert tokens(step("a", prompt_token_ids=[1], completion_token_ids=[]))[:2] == (1, 0)


# One call's cost


def test_parts_of_the_prompt_cost_their_own_price() -> None:
    usage = Usage(input=1000, output=200, cache_read=600, cache_write=100)
    # 300 * 3 + 600 * 0.3 + 100 * 3.75 + 200 * 15 = 900 + 180 + 375 + 3000 = 4455 millionths of a dollar.
    assert TABLE.cost(step("a", usage=usage, model="claude-x")) == Cost(amount=0.004455, source="table")


def test_without_a_cache_price_cached_tokens_cost_the_input_price() -> None:
    usage = Usage(input=1000, output=200, cache_read=600, cache_write=100)
    # 400 * 2.5 + 600 * 1.25 + 200 * 10 = 1000 + 750 + 2000 = 3750.
    assert TABLE.cost(step("a", usage=usage, model="gpt-4o")) == Cost(amount=0.00375, source="table")


def test_without_cache_counts_the_whole_prompt_costs_the_input_price() -> None:
    cost = TABLE.cost(step("a", usage=Usage(input=1_000_000, output=500_000), model="gpt-4o"))
    assert cost == Cost(amount=7.5, source="table")


def test_the_currency_is_the_prices() -> None:
    table = PriceTable({"*": Price(1, 2, currency="EUR")})
    cost = table.cost(step("a", usage=Usage(input=1_000_000, output=0), model="m"))
    assert cost == Cost(amount=1.0, currency="EUR", source="table")


def test_free_is_zero_and_known() -> None:
    cost = PriceTable({"*": Price(0, 0)}).cost(step("a", usage=Usage(input=5, output=5), model="m"))
    assert cost == Cost(amount=0.0, source="table")


@pytest.mark.parametrize(
    "facts",
    [
        {"model": "gpt-4o"},
        {"model": "gpt-4o", "usage": Usage(input=5)},
        {"model": "gpt-4o", "usage": Usage(output=5)},
        {"model": "gpt-5", "usage": Usage(input=5, output=5)},
        {"usage": Usage(input=5, output=5)},
        {"model": "gpt-4o", "usage": Usage(input=5, output=5, cache_read=6)},
        {"model": "gpt-4o", "usage": Usage(input=10**400, output=5)},
        {"model": "gpt-4o", "usage": Usage(input=5, output=5), "status": "cached"},
    ],
    ids=["no-usage", "no-output", "no-input", "no-price", "no-model", "contradiction", "huge", "cached"],
)
def test_an_unknown_cost_is_none(facts: dict[str, Any]) -> None:
    assert TABLE.cost(step("a", **facts)) is None


def test_the_provider_wins_over_the_table_and_the_user_over_both() -> None:
    usage = Usage(input=5, output=5, extra={"cost": 0.25})
    one = step("a", usage=usage, model="gpt-4o")
    assert TABLE.cost(one) == Cost(amount=0.25, source="provider")
    one.cost = Cost(amount=1.5, source="override")
    assert TABLE.cost(one) == Cost(amount=1.5, source="override")


def test_a_cost_of_an_older_table_is_computed_anew_and_not_replaced() -> None:
    one = step("a", usage=Usage(input=0, output=100_000), model="gpt-4o", cost=Cost(amount=9.0, source="table"))
    assert TABLE.cost(one) == Cost(amount=1.0, source="table")
    TABLE.apply(Trajectory(steps=[one]))
    assert one.cost == Cost(amount=9.0, source="table")


@pytest.mark.parametrize("cost", [None, True, "0.25", -0.1, math.nan, math.inf, 10**400, [1]])
def test_a_providers_cost_that_is_none_is_not_taken(cost: Any) -> None:
    assert PriceTable({}).cost(step("a", usage=Usage(input=5, output=5, extra={"cost": cost}))) is None


# Patterns


def price_of(table: dict[str, float], **names: Any) -> float | None:
    prices = PriceTable({pattern: Price(value, 0) for pattern, value in table.items()})
    cost = prices.cost(step("a", usage=Usage(input=1_000_000, output=0), **names))
    return None if cost is None else cost.amount


def test_the_most_specific_pattern_wins_wherever_it_stands() -> None:
    table = {"*": 1.0, "gpt-4o-mini*": 4.0, "gpt-4*": 2.0, "gpt-4o*": 3.0, "gpt-4o": 5.0, "gpt-?????????????": 6.0}
    assert price_of(table, model="gpt-4o-mini-2024") == 4.0
    assert price_of(table, model="gpt-4o") == 5.0
    assert price_of(table, model="gpt-4o-2024") == 3.0
    assert price_of(table, model="gpt-4.1") == 2.0
    assert price_of(table, model="GPT-4.1") == 1.0


def test_the_model_that_answered_comes_before_the_one_asked_for() -> None:
    table = {"auto": 1.0, "gpt-*": 2.0}
    assert price_of(table, model="auto", response_model="gpt-4o") == 2.0
    assert price_of(table, model="auto", response_model="unheard-of") == 1.0
    assert price_of(table, model="unheard-of") is None


def test_a_name_with_brackets_matches_itself() -> None:
    assert price_of({"m[large]": 1.0}, model="m[large]") == 1.0


@PROFILE
@given(st.dictionaries(st.text("ab*?", max_size=4), st.integers(0, 9), min_size=1), st.text("ab", max_size=4))
def test_the_order_of_a_table_does_not_matter_to_full_names(table: dict[str, int], model: str) -> None:
    table = {**table, model: 77}
    assert price_of(dict(table), model=model) == 77.0
    assert price_of(dict(reversed(table.items())), model=model) == 77.0


@pytest.mark.parametrize(
    ("price", "error", "message"),
    [
        (Price(-1, 2), ValueError, "the input price of 'gpt-4*' is -1: give a finite number, zero or more"),
        (Price(1, math.nan), ValueError, "the output price of 'gpt-4*' is nan"),
        (Price(1, math.inf), ValueError, "the output price of 'gpt-4*' is inf"),
        (Price(1, 2, cache_read=-0.5), ValueError, "the cache_read price of 'gpt-4*' is -0.5"),
        (Price("2.50", 2), TypeError, "the input price of 'gpt-4*' is '2.50': give a number"),  # type: ignore[arg-type]
        (Price(None, 2), TypeError, "the input price of 'gpt-4*' is None"),  # type: ignore[arg-type]
        (Price(1, 2, cache_write=True), TypeError, "the cache_write price of 'gpt-4*' is True"),
        (Price(Decimal(1), 2), TypeError, "the input price of 'gpt-4*' is Decimal('1')"),  # type: ignore[arg-type]
        (Price(1, 2, currency=""), TypeError, "the currency of 'gpt-4*' is ''"),
        ((1, 2), TypeError, "the price of 'gpt-4*' is (1, 2): give Price(input, output)"),
    ],
)
def test_bad_prices_are_refused_by_name(price: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        PriceTable({"gpt-3*": Price(1, 2), "gpt-4*": price})
    assert str(raised.value).startswith(message)


def test_a_pattern_is_text() -> None:
    with pytest.raises(TypeError, match="a pattern of a PriceTable is None: give a model name"):
        PriceTable({None: Price(1, 2)})  # type: ignore[dict-item]


# A trajectory's cost


def test_a_table_sets_the_cost_of_each_call_on_its_first_step() -> None:
    usage = Usage(input=1_000_000, output=100_000)  # 2.5 + 1 dollars.
    steps = [step("a", 0, usage=usage, model="gpt-4o"), step("a", 1, usage=usage, model="gpt-4o")]
    steps += [step("b", usage=usage, model="gpt-4o"), step("c", completion=None, model="gpt-4o", **REFUSED)]
    trajectory = Trajectory(steps=steps)
    assert trajectory.cost is None
    TABLE.apply(trajectory)
    assert [one.cost and one.cost.amount for one in steps] == [3.5, None, 3.5, None]
    assert trajectory.cost == Cost(amount=7.0, source="table")


def test_a_cost_on_any_choice_is_that_of_the_call_and_the_users_wins() -> None:
    first = step("a", 0, cost=Cost(amount=1.0, source="provider"))
    second = step("a", 1, cost=Cost(amount=2.0, source="override"))
    trajectory = Trajectory(steps=[first, second])
    assert trajectory.cost == Cost(amount=2.0, source="override")
    first.cost = None
    TABLE.apply(trajectory)
    assert first.cost is None


def test_several_sources_are_unknown_and_several_currencies_no_cost() -> None:
    dollars = [step("a", cost=Cost(amount=1.0, source="provider")), step("b", cost=Cost(amount=0.5, source="table"))]
    assert Trajectory(steps=dollars).cost == Cost(amount=1.5, source="unknown")
    euros = step("c", cost=Cost(amount=1.0, currency="EUR", source="table"))
    assert Trajectory(steps=[*dollars, euros]).cost is None


def test_one_call_of_unknown_cost_makes_the_sum_unknown() -> None:
    known = step("a", cost=Cost(amount=1.0, source="table"))
    assert Trajectory(steps=[known, step("b")]).cost is None
    assert Trajectory(steps=[known, step("b", cost=Cost(amount=math.nan))]).cost is None
    assert Trajectory(steps=[known, step("b", completion=None, **REFUSED)]).cost == known.cost


def test_sums_do_not_depend_on_the_order() -> None:
    steps = [step(str(n), cost=Cost(amount=0.1, source="table")) for n in range(10)]
    assert Trajectory(steps=steps).cost == Cost(amount=1.0, source="table")


def test_costs_are_written_and_read(tmp_path: Path) -> None:
    trajectory = Trajectory(steps=[step("a", usage=Usage(input=1_000_000, output=0), model="gpt-4o")])
    TABLE.apply(trajectory)
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        out.write(trajectory)
    (back,) = read(tmp_path / "rollouts.jsonl")
    assert back.cost == Cost(amount=2.5, source="table")


# While recording


@pytest.mark.parametrize(
    ("prices", "usage", "own", "expected"),
    [
        (None, {"cost": 0.25}, None, Cost(amount=0.25, source="provider")),
        (TABLE, {"cost": 0.25}, None, Cost(amount=0.25, source="provider")),
        (None, {}, None, None),
        # 400,000 * 2.5 + 100,000 * 1.25 + 10,000 * 10 = 1,225,000 millionths of a dollar.
        (
            TABLE,
            {
                "prompt_tokens": 500_000,
                "completion_tokens": 10_000,
                "prompt_tokens_details": {"cached_tokens": 100_000},
            },
            None,
            Cost(amount=1.225, source="table"),
        ),
        (TABLE, {"cost": 0.25}, 9.0, Cost(amount=9.0, source="override")),
    ],
    ids=["provider", "provider-over-table", "unknown", "table", "override"],
)
def test_a_recording_writes_costs(
    prices: PriceTable | None, usage: dict[str, Any], own: float | None, expected: Cost | None, tmp_path: Path
) -> None:
    openai = pytest.importorskip("openai")
    from rollout_trace.testing import Reply, ScriptedServer

    with ScriptedServer(lambda _: Reply("4", usage=usage)) as server:
        client = rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none"))
        with client, rt.recording(tmp_path / "rollouts.jsonl", prices=prices):
            with rt.trajectory() as trajectory:
                client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "2 + 2?"}])
                if own is not None:
                    trajectory.steps[0].cost = Cost(amount=own, source="override")
    (written,) = read(tmp_path / "rollouts.jsonl")
    assert written.steps[0].cost == trajectory.steps[0].cost == written.cost == expected


@pytest.mark.parametrize(
    ("kinds", "known"),
    [
        (["message"], True),
        (["message", "fallback_message"], True),
        (["compaction", "message"], False),
        (["advisor_message"], False),
    ],
    ids=str,
)
def test_tokens_that_the_counts_leave_out_have_no_cost(kinds: list[str], *, known: bool) -> None:
    """Anthropic's counts are of the iterations of the model alone; an advisor is another one."""
    iterations = [{"type": kind, "input_tokens": 900, "output_tokens": 9} for kind in kinds]
    one = step("a", model="m", usage=Usage(input=10, output=2, extra={"iterations": iterations}))
    assert (PriceTable({"*": Price(1, 1)}).cost(one) is not None) is known
