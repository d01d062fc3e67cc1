import unittest

from shop.invoice import total
from shop.money import percent


class InvoiceTest(unittest.TestCase):
    def test_the_sum_of_the_lines(self) -> None:
        self.assertEqual(total([(2, 250), (1, 499)]), 999)

    def test_the_discount_is_taken_off(self) -> None:
        self.assertEqual(total([(1, 1000)], discount=10), 900)

    def test_tax_is_rounded_to_the_nearest_cent(self) -> None:
        self.assertEqual(total([(1, 999)], tax=19), 1189)

    def test_half_a_cent_is_rounded_up(self) -> None:
        self.assertEqual(percent(250, 5), 13)
