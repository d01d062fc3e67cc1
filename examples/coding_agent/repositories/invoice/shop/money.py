"""Amounts of money, in cents."""


def percent(cents: int, rate: int) -> int:
    """So many percent of an amount, to the nearest cent; half a cent is rounded up."""
    return int(cents * rate / 100)
