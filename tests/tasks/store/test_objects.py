"""Whole objects, put, found and removed wherever a store lies."""

import time
from concurrent.futures import ThreadPoolExecutor

from stored_places import Place


def test_an_object_is_what_was_put_last(place: Place) -> None:
    store = place.objects
    assert (store.get("a/b.npz"), store.size("a/b.npz"), store.objects("a")) == (None, None, {})
    store.put("a/b.npz", b"1")
    store.put("a/b.npz", b"22")
    store.put("a/c/d.npz", b"333")
    assert (place.objects.get("a/b.npz"), place.objects.size("a/b.npz")) == (b"22", 2)
    assert store.get("a") is None
    found = store.objects("a")
    assert {key: each.size for key, each in found.items()} == {"a/b.npz": 2, "a/c/d.npz": 3}
    assert list(store.objects("a", depth=1)) == ["a/b.npz"]
    assert store.objects("").keys() == found.keys()
    assert all(abs(found.modified - time.time()) < 60 for found in store.objects().values())
    store.remove(["a/b.npz", "a/none"])
    store.remove("a/b.npz")
    assert list(store.objects("")) == ["a/c/d.npz"]


def test_the_first_stays_where_it_may_not_be_replaced(place: Place) -> None:
    place.objects.put_if_absent("a", b"1")
    place.objects.put_if_absent("a", b"2")
    assert place.objects.get("a") == b"1"


def test_writers_at_once_leave_one_whole_object(place: Place) -> None:
    contents = [bytes([number]) * 50_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda content: place.objects.put("a", content), contents))
    assert place.objects.get("a") in contents
