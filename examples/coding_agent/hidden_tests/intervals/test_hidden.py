import unittest

from intervals import merge


class HiddenMergeTest(unittest.TestCase):
    def test_one_inside_another_shortens_nothing(self) -> None:
        self.assertEqual(merge([(0, 90), (10, 20)]), [(0, 90)])

    def test_a_chain_of_touching_ones(self) -> None:
        self.assertEqual(merge([(20, 30), (0, 10), (10, 20)]), [(0, 30)])
