import unittest

from cache import Cache


class HiddenCacheTest(unittest.TestCase):
    def test_a_new_value_for_a_key_drops_no_other(self) -> None:
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("b", 3)
        self.assertEqual((cache.get("a"), cache.get("b")), (1, 3))

    def test_a_missing_key_stays_missing(self) -> None:
        cache = Cache(1)
        self.assertIsNone(cache.get("a"))
        cache.put("b", 2)
        self.assertEqual(cache.get("b"), 2)
