"""The expressions of docs/filter.md: each can be asked of any trajectory."""

from __future__ import annotations

import re

import pytest
from page_blocks import blocks_of

from rollout_trace.view.expression import Expression
from tests.consumers import recorded

(_BLOCK,) = [one for one in blocks_of("docs/filter.md") if one.headings[-1] == "Expressions"]
EXPRESSIONS = [re.split(r"\s{2,}", line)[0] for line in _BLOCK.text.splitlines()]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_of_the_page(text: str) -> None:
    expression = Expression(text)
    assert {expression(one) for one in recorded.failed_steps()} <= {True, False}
