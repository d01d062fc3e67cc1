"""What a customer pays."""

from shop.money import percent

Line = tuple[int, int]
"""Quantity, and the price of one in cents."""


def total(lines: list[Line], discount: int = 0, tax: int = 0) -> int:
    """The sum of the lines less the discount, and the tax on what is left; both in percent."""
    net = sum(quantity * price for quantity, price in lines)
    return net - percent(net, discount) + percent(net, tax)
