"""The shop: its orders, and what the agent may do with them."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Order:
    """One order of a customer."""

    id: str
    customer: str
    item: str
    price: float
    status: str
    refunded: bool = False


ORDERS = [
    Order("A-1001", "ada@example.com", "teapot", 24.5, "delivered"),
    Order("A-1002", "ada@example.com", "kettle", 39.0, "on its way"),
    Order("B-2001", "bob@example.com", "lamp", 18.0, "lost in the post"),
]


class Shop:
    """Orders that change: every run of the agent has its own."""

    def __init__(self) -> None:
        self.orders = copy.deepcopy(ORDERS)

    def search_orders(self, customer: str, item: str = "") -> list[dict[str, Any]]:
        """The orders of a customer, by email; with an item, those of that item alone."""
        found = [order for order in self.orders if order.customer == customer and item in order.item]
        return [asdict(order) for order in found]

    def refund(self, order_id: str, reason: str) -> dict[str, Any]:
        """Pays an order back. Raises LookupError if there is none with this id, ValueError if it was refunded."""
        order = next((order for order in self.orders if order.id == order_id), None)
        if order is None:
            raise LookupError(f"there is no order {order_id}")
        if order.refunded:
            raise ValueError(f"order {order_id} was refunded before")
        order.refunded = True
        return {"order_id": order.id, "refunded": order.price, "reason": reason}
