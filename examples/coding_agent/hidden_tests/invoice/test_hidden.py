import unittest

from shop.invoice import total
from shop.money import percent


class HiddenInvoiceTest(unittest.TestCase):
    def test_tax_is_on_what_the_discount_leaves(self) -> None:
        self.assertEqual(total([(1, 1000)], discount=50, tax=20), 600)

    def test_whole_cents_stay(self) -> None:
        self.assertEqual(percent(200, 7), 14)

    def test_large_amounts_are_exact(self) -> None:
        self.assertEqual(percent(10**18 + 50, 1), 10**16 + 1)
