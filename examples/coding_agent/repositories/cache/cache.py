"""A cache of limited size."""

from typing import Any


class Cache:
    """Keeps the ``size`` entries that were used last. Both ``get`` and ``put`` use an entry."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """The value, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Any) -> None:
        """Stores a value; where the cache is full, the entry goes that was not used for the longest time."""
        if len(self._entries) >= self._size:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value
