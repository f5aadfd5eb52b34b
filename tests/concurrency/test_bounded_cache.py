import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

from turnwise.concurrency.bounded_cache import BoundedCache


def test_cache_drops_what_was_not_used_for_the_longest_time() -> None:
    cache = BoundedCache[bytes](len, 6)
    cache.put("a", b"aaa")
    cache.put("b", b"bbb")
    assert cache.get("a") == b"aaa"
    cache.put("c", b"ccc")
    assert [key for key, _ in cache.items()] == ["a", "c"]
    cache.put("a", b"another")  # the first value stays
    cache.put("d", b"ddd")
    assert cache.items() == [("a", b"aaa"), ("d", b"ddd")]


def test_cache_keeps_one_value_that_is_too_large() -> None:
    cache = BoundedCache[bytes](len, 2)
    cache.put("a", b"aaa")
    assert cache.get("a") == b"aaa"
    cache.put("b", b"b")
    assert "a" not in cache and cache.get("a") is None and len(cache) == 1


def test_dropped_values_make_room() -> None:
    cache = BoundedCache[bytes](len, 6)
    for drop in (lambda: cache.drop("a"), cache.clear):
        cache.put("a", b"aaa")
        drop()
        cache.drop("missing")
        cache.put("b", b"bbb")
        cache.put("c", b"ccc")
        assert [key for key, _ in cache.items()] == ["b", "c"]


def test_cache_without_limit_keeps_everything() -> None:
    cache = BoundedCache[bytes](len, None)
    for number in range(100):
        cache.put(str(number), bytes(1000))
    assert len(cache) == 100


def test_copy_for_another_process_is_empty() -> None:
    cache = BoundedCache[bytes](len, 2)
    cache.put("a", b"aaa")
    copy = pickle.loads(pickle.dumps(cache))
    assert len(copy) == 0
    copy.put("b", b"bb")
    copy.put("c", b"c")
    assert [key for key, _ in copy.items()] == ["c"]


def test_threads_share_a_cache() -> None:
    """A value that one thread looks up may be dropped by another one at any time."""
    cache, before = BoundedCache[int](lambda value: 1, 2), sys.getswitchinterval()

    def use(thread: int) -> int:
        found = 0
        for number in range(20_000):
            key = str((number + thread) % 4)
            cache.put(key, number)
            found += cache.get(key) is not None
        return found

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert all(found > 0 for found in pool.map(use, range(2)))
    finally:
        sys.setswitchinterval(before)
    assert len(cache) == 2
