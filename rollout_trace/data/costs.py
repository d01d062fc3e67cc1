"""Token counts and costs of calls. Each call counts once, however many choices it has.

A total is None as soon as one part of it is unknown: missing is not zero. A call that sampled nothing and has no usage
(a refused request, a lost connection) adds nothing; nor does an answer from a framework's cache, which made no call.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, Final, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace.data.counts import Path, amount_of, count_at, value_at
from rollout_trace.data.model import Cost, Step, Usage

Call: TypeAlias = list[Step]
"""The steps of one call: its choices."""
_PER_MILLION = 1e6
_BESIDE = frozenset({"compaction", "advisor_message"})
_WILDCARDS = re.compile(r"\[[^\]]*\]|[*?]")


@document_fields
@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a model's tokens, in units of ``currency`` per million tokens.

    If ``cache_read`` or ``cache_write`` is None, tokens read from or written to the provider's prompt cache cost the
    ``input`` price. A ``PriceTable`` checks the numbers.
    """

    input: float
    """Price of prompt tokens."""
    output: float
    """Price of completion tokens."""
    cache_read: float | None = None
    """Price of tokens read from the prompt cache."""
    cache_write: float | None = None
    """Price of tokens written to the prompt cache."""
    currency: str = "USD"
    """Currency code, such as ``USD``."""
    cache_write_1h: float | None = None
    """Price of tokens written to the prompt cache for an hour. If None, a call with such tokens has no cost."""


class PriceTable:
    """Prices by model name or pattern: ``PriceTable({"gpt-4o": Price(2.5, 10, cache_read=1.25), "gpt-4*": ...})``.

    Patterns are case-sensitive ``fnmatch`` patterns (``*``, ``?``, ``[…]``). If several match, an exact name wins, then
    the pattern with the most characters outside wildcards. ``response_model`` is looked up first, then ``model``.

    Raises:
        TypeError: a pattern is not a text, or its value is not a ``Price`` of numbers.
        ValueError: a price is negative or not finite.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        for pattern, price in prices.items():
            _check_price(pattern, price)

        # Most specific first: `price` returns the first pattern that matches.
        def specificity(item: tuple[str, Price]) -> tuple[int, int]:
            return len(_WILDCARDS.sub("", item[0])), len(item[0])

        self._prices = dict(sorted(prices.items(), key=specificity, reverse=True))

    def __repr__(self) -> str:
        return f"PriceTable({self._prices!r})"

    def price(self, model: str | None) -> Price | None:
        """Returns the price of a model, or None."""
        pattern = self._pattern(model)
        return None if pattern is None else self._prices[pattern]

    def _pattern(self, model: str | None) -> str | None:
        if model is None or model in self._prices:
            return model
        return next((pattern for pattern in self._prices if fnmatchcase(model, pattern)), None)

    def cost(self, step: Step) -> Cost | None:
        """Returns the cost of the step's call, including all its choices; None if it is unknown.

        A cost set on the step (``source="override"``) comes first, then the cost in the provider's answer
        (``source="provider"``), then this table (``source="table"``): ``usage.input`` counts the whole prompt,
        ``cache_read`` and ``cache_write`` are parts of it, charged at their own prices, or at the input price where the
        table has none; tokens written for an hour have their own price, or the call has no cost. A missing cache count
        counts as 0. Without both token counts, or without a price, the cost is None.
        """
        if step.status == "cached":
            return None
        # A cost from a table is computed anew: this table may have other prices.
        if step.cost is not None and step.cost.source != "table":
            return step.cost
        price = self.price(step.response_model) or self.price(step.model)
        return provider_cost(step) or _table_cost(step.usage, price)

    def apply(self, trajectory: Any) -> None:
        """Sets ``step.cost`` on the first step of each call whose steps have no cost yet.

        Notes the prices it used in ``trajectory.environment["prices"]``, by pattern.
        """
        _fill_costs(trajectory.steps, self.cost)
        used = self.used(trajectory.steps)
        if used and hasattr(trajectory, "environment"):
            environment = trajectory.environment or {}
            # Past `__setattr__`, which reports what a user sets.
            prices = {**environment.get("prices", {}), **used}
            object.__setattr__(trajectory, "environment", {**environment, "prices": prices})

    def used(self, steps: Iterable[Step]) -> dict[str, dict[str, Any]]:
        """Returns the prices used for costs with ``source="table"``: the fields of each ``Price``, by its pattern."""
        models = {(step.response_model, step.model) for step in steps if step.cost and step.cost.source == "table"}
        patterns = {self._pattern(answered) or self._pattern(asked) for answered, asked in models}
        found = {pattern: asdict(self._prices[pattern]) for pattern in sorted(filter(None, patterns))}
        return {pattern: {k: v for k, v in price.items() if v is not None} for pattern, price in found.items()}


@dataclass(frozen=True, slots=True)
class CostPlace:
    """A place of the cost of a call."""

    path: Path
    """From ``Usage.extra``, or from ``Step.extra`` where ``of_answer`` is set."""
    seen: str
    """Who puts it there, and the evidence."""
    unit: float = 1.0
    """US dollars."""
    of_answer: bool = False


COSTS: Final = (
    CostPlace(("cost",), "OpenRouter, SDK 1.3 types: credits, which are US dollars"),
    CostPlace(("cost", "total_cost"), "Perplexity, SDK 0.46 types"),
    CostPlace(("cost_in_usd_ticks",), "xAI: @ai-sdk/xai 3.0.138, source", unit=1e-10),
    CostPlace(("estimated_cost",), "DeepInfra, its API's reference"),
    CostPlace(("cost",), "Eden AI: LiteLLM 1.110, source", of_answer=True),
)
_COST_NAMES: Final = frozenset(row.path[0] for row in COSTS)
_OWN_KEY: Final = ("is_byok",)
_UPSTREAM: Final = ("cost_details", "upstream_inference_cost")
"""OpenRouter's, from ``Usage.extra``: with one's own key ``cost`` is its fee, the provider's price comes to it."""


def prices_by_pattern(table: PriceTable) -> dict[str, Price]:
    """The prices of a table, as it was made."""
    return dict(table._prices)


def provider_cost(step: Step) -> Cost | None:
    """The cost in the provider's answer, from the places of ``COSTS``."""
    if step.status == "cached":
        return None
    amount = _cost_in(step.usage.extra if step.usage is not None else None, step.extra)
    return None if amount is None else Cost(amount=amount, source="provider")


def _cost_in(usage: Mapping[str, Any] | None, answer: Mapping[str, Any] | None) -> float | None:
    """The cost of a call in US dollars, from ``Usage.extra`` and ``Step.extra``; None where no place has one."""
    if _COST_NAMES.isdisjoint(usage or ()) and _COST_NAMES.isdisjoint(answer or ()):
        return None
    found = (amount_of(value_at(answer if row.of_answer else usage, row.path), row.unit) for row in COSTS)
    amount = next((one for one in found if one is not None), None)
    upstream, is_own_key = amount_of(value_at(usage, _UPSTREAM)), value_at(usage, _OWN_KEY)
    if amount is not None and is_own_key is None:
        is_own_key = upstream is not None and upstream > amount
    if amount is None or not is_own_key:
        return amount
    return None if upstream is None else amount + upstream


def fill_provider_costs(steps: Iterable[Step]) -> None:
    """Sets ``step.cost`` from the provider's answer on the first step of each call that has none."""
    steps = list(steps)
    # Few providers send one: nothing is grouped for the others.
    if any(map(provider_cost, steps)):
        _fill_costs(steps, provider_cost)


def total_cost(steps: Iterable[Step]) -> Cost | None:
    """The cost of all calls, as ``Trajectory.cost``."""
    costs = []
    for call in calls_of(steps):
        cost = cost_of(call)
        if cost is not None and math.isfinite(cost.amount):
            costs.append(cost)
        elif has_consumed(call):
            return None
    if len({cost.currency for cost in costs}) != 1:
        return None
    sources = {cost.source for cost in costs}
    return Cost(
        amount=math.fsum(cost.amount for cost in costs),
        currency=costs[0].currency,
        source=sources.pop() if len(sources) == 1 else "unknown",
    )


def total_tokens(steps: Iterable[Step], count: str) -> int | None:
    """The sum over all calls of one field of ``Usage``, else of their ids; None where a call's count is unknown."""
    total = 0
    for call in calls_of(steps):
        tokens = tokens_of(call, count)
        if tokens is not None:
            total += tokens
        elif has_consumed(call):
            return None
    return total


# Calls


def calls_of(steps: Iterable[Step]) -> list[Call]:
    """The steps of each call that was made, in the order of their first steps."""
    calls: dict[str, Call] = {}
    for step in steps:
        if step.status != "cached":
            calls.setdefault(step.call_id, []).append(step)
    return list(calls.values())


def _has_output(step: Step) -> bool:
    return step.completion is not None or step.completion_token_ids is not None or step.status in ("ok", "superseded")


def has_consumed(call: Call) -> bool:
    """Returns whether a call used tokens: it then needs a count and a cost, or the total is unknown."""
    return any(step.usage is not None or _has_output(step) for step in call)


def tokens_of(call: Call, count: str) -> int | None:
    """Reads one field of the usage of a call, else counted from its ids; None where it is unknown."""
    for step in call:
        tokens: int | None = None if step.usage is None else getattr(step.usage, count)
        if tokens is not None:
            return tokens
    if count not in ("input", "output"):
        return None
    name = "completion_token_ids" if count == "output" else "prompt_token_ids"
    ids = [getattr(step, name) for step in call if _has_output(step)]
    if not ids or any(one is None for one in ids):
        # A choice without ids makes the sum unknown, not smaller.
        return None
    if count == "output":
        return sum(map(len, ids))
    # Choices repeat the prompt, but one call of ``openai.completions`` can send several prompts: each counts once.
    return sum({one.tobytes(): len(one) for one in ids}.values())


def cost_of(call: Call) -> Cost | None:
    """The cost set on any step of a call; one with ``source="override"`` comes first."""
    costs = [step.cost for step in call if step.cost is not None]
    return next((cost for cost in costs if cost.source == "override"), costs[0] if costs else None)


def _fill_costs(steps: Iterable[Step], cost: Callable[[Step], Cost | None]) -> None:
    for call in calls_of(steps):
        if cost_of(call) is None:
            call[0].cost = next(filter(None, map(cost, call)), None)


# Prices


_LONG_WRITES: Final[tuple[Path, ...]] = (
    ("cache_creation", "ephemeral_1h_input_tokens"),  # Anthropic, SDK types.
    ("cache_creation_token_details", "ephemeral_1h_input_tokens"),  # LiteLLM 1.110, source.
)
"""Paths from ``Usage.extra``: of the tokens written to the cache those kept for an hour, which have another price."""


def _table_cost(usage: Usage | None, price: Price | None) -> Cost | None:
    if usage is None or price is None or usage.input is None or usage.output is None or _has_others(usage):
        return None
    read, long = usage.cache_read or 0, max(count_at(usage.extra, path) or 0 for path in _LONG_WRITES)
    write = (usage.cache_write or 0) - long
    fresh = usage.input - read - write - long
    if min(fresh, read, write, usage.output) < 0:
        return None  # Contradictory counts: more tokens cached than in the prompt, or a negative count.
    if long and price.cache_write_1h is None:
        return None
    parts = (
        (fresh, price.input),
        (read, price.input if price.cache_read is None else price.cache_read),
        (write, price.input if price.cache_write is None else price.cache_write),
        (long, price.cache_write_1h or 0),
        (usage.output, price.output),
    )
    try:
        amount = math.fsum(tokens * float(each) for tokens, each in parts) / _PER_MILLION
    except OverflowError:
        return None
    return Cost(amount=amount, currency=price.currency, source="table")


def _has_others(usage: Usage) -> bool:
    """Whether the call had tokens that its counts leave out: Anthropic's compactions and advisors, SDK 2.11 types."""
    found = (usage.extra or {}).get("iterations")
    parts = found if isinstance(found, list) else ()
    return any(isinstance(one, Mapping) and one.get("type") in _BESIDE for one in parts)


def _check_price(pattern: Any, price: Any) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f'a pattern of a PriceTable is {pattern!r}: give a model name or pattern as text, "gpt-4*".')
    if not isinstance(price, Price):
        raise TypeError(f"the price of {pattern!r} is {price!r}: give Price(input, output), per million tokens.")
    if not isinstance(price.currency, str) or not price.currency:
        raise TypeError(f'the currency of {pattern!r} is {price.currency!r}: give its code as text, e.g. "USD".')
    for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h"):
        value = getattr(price, name)
        if value is None and name.startswith("cache"):
            continue
        where = f"the {name} price of {pattern!r} is {value!r}"
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{where}: give a number, in units of its currency per million tokens.")
        if not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
            raise ValueError(f"{where}: give a finite number, zero or more, per million tokens.")
