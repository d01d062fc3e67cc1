"""What the agent does with a model's real answers: recorded once into a cassette, replayed ever after."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from agent.desk import handle
from agent.shop import Shop
from agent.support import answer, answer_async, answer_in_pieces

REFUND = "My lamp never came, I want my money back. bob@example.com"
KETTLE = "Where is my kettle? ada@example.com"


@pytest.mark.replay("cassettes/refund.jsonl")
def test_a_lost_lamp_is_paid_back(rollout):
    shop = Shop()

    text = answer(REFUND, shop)

    assert "18.00" in text
    assert [order.id for order in shop.orders if order.refunded] == ["B-2001"]
    rollout.assert_called_in_order("search_orders", "refund")
    rollout.assert_called("refund", order_id="B-2001")
    rollout.assert_finished("stop")


@pytest.mark.replay("cassettes/questions.jsonl")
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param(KETTLE, "on its way", id="kettle"),
        pytest.param("Has my teapot come? ada@example.com", "delivered", id="teapot"),
        pytest.param("Where is my order? carl@example.com", "no order", id="stranger"),
    ],
)
def test_a_question_is_answered_without_a_refund(rollout, question, expected):
    assert expected in answer(question)

    rollout.assert_called("search_orders")
    rollout.assert_not_called("refund")
    rollout.assert_steps(2)


@pytest.mark.replay("cassettes/letter.jsonl")
def test_a_letter_is_answered_and_filed(rollout):
    assert handle(REFUND) == "refunds: Your lamp is paid back: 18.00."

    rollout.assert_called("refund", times=1)


@pytest.mark.replay("cassettes/streamed.jsonl")
def test_the_answer_comes_in_the_recorded_pieces(rollout):
    pieces = list(answer_in_pieces(KETTLE))

    assert len(pieces) > 1
    assert "".join(pieces) == rollout.text == "Your kettle is on its way."


@pytest.mark.replay("cassettes/parallel.jsonl")
async def test_customers_at_the_same_time(rollout):
    answers = await asyncio.gather(*map(answer_async, (REFUND, KETTLE)))

    assert answers == ["Your lamp is paid back: 18.00.", "Your kettle is on its way."]
    rollout.assert_called("refund", times=1)


@pytest.mark.replay("cassettes/command.jsonl")
def test_the_command_line():
    """The agent in a process of its own, in any language: it talks to a server on 127.0.0.1."""
    command = [sys.executable, "-m", "agent", KETTLE]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "Your kettle is on its way.\n")
