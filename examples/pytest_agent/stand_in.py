"""What stands in for a model where the cassettes were recorded: rules that read the conversation.

    rollout-trace serve stand_in.py --port 8000
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none pytest --replay=record

With a model of your own, leave it away: set OPENAI_BASE_URL, OPENAI_API_KEY and SUPPORT_MODEL, and record.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollout_trace.testing import Reply


def script(request: dict[str, Any]) -> str | Reply:
    """The answer to one request: first a search, then a refund where one is asked for, then a sentence."""
    messages = request["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    if "response_format" in request:
        return json.dumps({"desk": "refunds" if "back" in question else "deliveries", "urgent": "never" in question})
    results = [message["content"] for message in messages if message["role"] == "tool"]
    email = re.search(r"\S+@\S+\.\w+", question)
    if email is None:
        return "Please tell me the email address of your order."
    if not results:
        item = re.search(r"teapot|kettle|lamp", question)
        return call("search_orders", customer=email[0], **({"item": item[0]} if item else {}))
    orders = json.loads(results[0])
    if not orders:
        return f"There is no order of {email[0]}."
    order = orders[0]
    if "back" in question and len(results) == 1:
        return call("refund", order_id=order["id"], reason=order["status"])
    if len(results) > 1:
        return f"Your {order['item']} is paid back: {json.loads(results[1])['refunded']:.2f}."
    return f"Your {order['item']} is {order['status']}."


def call(name: str, **arguments: str) -> Reply:
    """A reply that calls a tool."""
    return Reply(tool_calls=[(name, json.dumps(arguments))])
