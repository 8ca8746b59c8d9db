"""Bounded memory: the most recently used things are kept, the others made again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from nediff.data.layout import Array

V = TypeVar("V")

DEFAULT_CACHE_BYTES = 2**30
_MOST_HANDLES = 64


class Lru(Generic[V]):
    """Keeps values up to a total weight; the least recently used go first.

    Safe to share between threads. A copy sent to another process starts out empty.
    """

    def __init__(
        self, capacity: int, weigh: Callable[[V], int], discard: Callable[[V], None]
    ) -> None:
        self._arguments = (capacity, weigh, discard)
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Lru, self._arguments

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value kept under ``key``, or ``make()``; the newest is kept however heavy it is."""
        capacity, weigh, _ = self._arguments
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        weight = weigh(value)
        with self._lock:
            if key not in self._values:
                self._shrink(max(capacity - weight, 0))
                self._values[key] = value
                self.weight += weight
        return value

    def _shrink(self, capacity: int) -> None:
        _, weigh, discard = self._arguments
        while self.weight > capacity:
            _, value = self._values.popitem(last=False)
            self.weight -= weigh(value)
            discard(value)


def _bytes(array: Array) -> int:
    return array.nbytes


def _one(_: Any) -> int:
    return 1


def _forget(_: Any) -> None:
    pass


def image_cache(capacity: int) -> Lru[Any]:
    """Arrays, up to ``capacity`` bytes in all."""
    return Lru(capacity, _bytes, _forget)


def _close(handle: Any) -> None:
    if hasattr(handle, "close"):  # a TiffFile; a memory map goes with its last reference
        handle.close()


class Store:
    """What the files of one data set share: decoded images, and open files."""

    def __init__(self, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.images: Lru[Array] = Lru(cache_bytes, _bytes, _forget)
        self.handles: Lru[Any] = Lru(_MOST_HANDLES, _one, _close)
