import unittest

from intervals import merge


class MergeTest(unittest.TestCase):
    def test_nothing(self) -> None:
        self.assertEqual(merge([]), [])

    def test_apart_they_stay(self) -> None:
        self.assertEqual(merge([(60, 90), (0, 30)]), [(0, 30), (60, 90)])

    def test_overlapping_ones_are_one(self) -> None:
        self.assertEqual(merge([(0, 40), (30, 60)]), [(0, 60)])

    def test_touching_ones_are_one(self) -> None:
        self.assertEqual(merge([(0, 30), (30, 60)]), [(0, 60)])
