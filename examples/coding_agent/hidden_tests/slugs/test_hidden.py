import unittest

from slugs import slugify


class HiddenSlugifyTest(unittest.TestCase):
    def test_no_dash_where_it_is_cut(self) -> None:
        self.assertEqual(slugify("one two three", limit=8), "one-two")

    def test_marks_in_other_places(self) -> None:
        self.assertEqual(slugify("What -- again?!"), "what-again")

    def test_short_titles_are_whole(self) -> None:
        self.assertEqual(slugify("abc", limit=3), "abc")
