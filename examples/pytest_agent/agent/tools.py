"""The tools as the model sees them, and how its calls of them are run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agent.shop import Shop


def tool(name: str, description: str, required: tuple[str, ...], **properties: str) -> dict[str, Any]:
    """A tool in the form of OpenAI's API; each property is a text with the description given."""
    described = {name: {"type": "string", "description": text} for name, text in properties.items()}
    parameters = {"type": "object", "properties": described, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: list[Any] = [
    tool(
        "search_orders",
        "Finds the orders of a customer.",
        ("customer",),
        customer="the customer's email",
        item="a word of the item's name",
    ),
    tool(
        "refund",
        "Pays an order back in full.",
        ("order_id", "reason"),
        order_id="the order's id, such as A-1001",
        reason="why, in a few words",
    ),
]


def run_tool(shop: Shop, name: str, arguments: str) -> str:
    """The result of a tool call as text for the model, errors included: the model may correct itself."""
    functions: dict[str, Callable[..., Any]] = {"search_orders": shop.search_orders, "refund": shop.refund}
    if name not in functions:
        return f"error: there is no tool {name}"
    try:
        return json.dumps(functions[name](**json.loads(arguments)))
    except (LookupError, TypeError, ValueError) as error:
        return f"error: {error}"
