import unittest

from cache import Cache


class CacheTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cache = Cache(2)
        self.cache.put("a", 1)
        self.cache.put("b", 2)

    def test_it_keeps_what_fits(self) -> None:
        self.assertEqual((self.cache.get("a"), self.cache.get("b")), (1, 2))

    def test_the_oldest_goes(self) -> None:
        self.cache.put("c", 3)
        self.assertIsNone(self.cache.get("a"))

    def test_what_was_read_last_stays(self) -> None:
        self.cache.get("a")
        self.cache.put("c", 3)
        self.assertEqual((self.cache.get("a"), self.cache.get("b")), (1, None))
