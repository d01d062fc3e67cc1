"""Chances to pass, estimated without bias from n runs of which c passed."""

from __future__ import annotations

from math import comb


def chance_of_any(n: int, c: int, k: int) -> float:
    """pass@k: the chance that at least one of k of the runs passed (Chen et al. 2021, arXiv 2107.03374)."""
    # Whole numbers, divided once: exact, where a product of fractions would gather rounding errors.
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def chance_of_all(n: int, c: int, k: int) -> float:
    """pass^k: the chance that all of k of the runs passed (tau-bench, Yao et al. 2024, arXiv 2406.12045)."""
    return comb(c, k) / comb(n, k)
