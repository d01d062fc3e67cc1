"""The agent's own logic: the test says what the model answers. No model, no key, no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agent.shop import Shop
from agent.support import MOST_STEPS, answer, answer_async, answer_in_pieces

from rollout_trace.testing import Fault, Reply

QUESTION = "My lamp never came, I want my money back. bob@example.com"
SEARCH = Reply(tool_calls=[("search_orders", '{"customer": "bob@example.com"}')])
REFUND = Reply(tool_calls=[("refund", '{"order_id": "B-2001", "reason": "lost"}')])


def test_an_order_is_looked_up_and_refunded(scripted_llm, rollout):
    scripted_llm.script = [SEARCH, REFUND, "Your lamp is paid back."]
    shop = Shop()

    assert answer(QUESTION, shop) == "Your lamp is paid back."

    assert [order.id for order in shop.orders if order.refunded] == ["B-2001"]
    rollout.assert_called_in_order("search_orders", "refund")
    rollout.assert_called("refund", order_id="B-2001")
    rollout.assert_steps(3)
    rollout.assert_finished("stop")


def test_two_tools_at_once(scripted_llm, rollout):
    both = Reply(tool_calls=[*SEARCH.tool_calls, *REFUND.tool_calls])
    scripted_llm.script = [both, "Done."]

    assert answer(QUESTION) == "Done."

    assert [call.name for call in rollout.tool_calls] == ["search_orders", "refund"]


def test_the_models_mistake_goes_back_to_it(scripted_llm, rollout):
    wrong = Reply(tool_calls=[("refund", '{"order_id": "Z-1", "reason": "lost"}')])
    scripted_llm.script = [wrong, "I do not find that order."]

    answer(QUESTION)

    assert rollout.messages[-2]["content"] == "error: there is no order Z-1"


def test_arguments_that_are_no_json(scripted_llm, rollout):
    scripted_llm.script = [Reply(tool_calls=[("refund", '{"order_id": ')]), "Please say it again."]

    assert answer(QUESTION) == "Please say it again."


def test_an_overloaded_server_is_asked_again(scripted_llm, rollout):
    busy = Fault(status=503, headers={"retry-after-ms": "1"})
    scripted_llm.script = [busy, "It is on its way."]

    assert answer("Where is my kettle? ada@example.com") == "It is on its way."

    rollout.assert_steps(1)
    assert [attempt.status for attempt in rollout.steps[0].attempts] == [503, 200]


def test_a_model_that_never_answers_is_left(scripted_llm, rollout):
    scripted_llm.script = lambda request: SEARCH

    with pytest.raises(RuntimeError, match="no answer after 6 steps"):
        answer(QUESTION)

    rollout.assert_steps(MOST_STEPS)


def test_the_answer_comes_in_pieces(scripted_llm, rollout):
    scripted_llm.script = [SEARCH, "Lost, sorry."]

    pieces = list(answer_in_pieces(QUESTION))

    assert len(pieces) > 1
    assert "".join(pieces) == "Lost, sorry." == rollout.text


async def test_async(scripted_llm, rollout):
    scripted_llm.script = [SEARCH, REFUND, "Your lamp is paid back."]

    assert await answer_async(QUESTION) == "Your lamp is paid back."

    rollout.assert_called("refund", order_id="B-2001")


def test_the_command_line(scripted_llm):
    """A process of its own: it finds the server in OPENAI_BASE_URL."""
    scripted_llm.script = [SEARCH, "It was lost."]

    command = [sys.executable, "-m", "agent", QUESTION]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "It was lost.\n")
