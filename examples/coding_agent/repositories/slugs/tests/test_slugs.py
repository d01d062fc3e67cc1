import unittest

from slugs import slugify


class SlugifyTest(unittest.TestCase):
    def test_words_are_joined(self) -> None:
        self.assertEqual(slugify("Release notes"), "release-notes")

    def test_several_marks_give_one_dash(self) -> None:
        self.assertEqual(slugify("Fast, small: a tokenizer"), "fast-small-a-tokenizer")

    def test_no_dash_at_either_end(self) -> None:
        self.assertEqual(slugify("(draft)"), "draft")
