"""Images are kept once by content and can be read back from their folder."""

import pytest

from turnwise.core.errors import UserError
from turnwise.pictures import image_store
from turnwise.pictures.image_store import ImageStore


def test_image_store_keeps_equal_images_once(tmp_path):
    store = ImageStore(tmp_path / "images")
    first, again, other = store.put(b"one"), store.put(b"one"), store.put(b"two")
    assert first == again != other
    assert sorted(file.name for file in (tmp_path / "images").iterdir()) == sorted(
        f"{key}.png" for key in (first, other)
    )
    assert (store.get(first), store.get(other)) == (b"one", b"two")


def test_image_store_reads_evicted_images_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(image_store, "MEMORY_BYTES", 4)
    store = ImageStore(tmp_path)
    keys = [store.put(data) for data in (b"one", b"two", b"six")]
    assert len(store._images) == 1
    assert [store.get(key) for key in keys] == [b"one", b"two", b"six"]
    assert ImageStore(tmp_path).get(keys[0]) == b"one"


def test_image_store_without_folder_never_evicts(monkeypatch):
    monkeypatch.setattr(image_store, "MEMORY_BYTES", 4)
    store = ImageStore()
    keys = [store.put(data) for data in (b"one", b"two", b"six")]
    assert [store.get(key) for key in keys] == [b"one", b"two", b"six"]


def test_image_store_reports_a_missing_image(tmp_path):
    for store in (ImageStore(), ImageStore(tmp_path)):
        with pytest.raises(UserError, match="images/"):
            store.get("0" * 32)


def test_image_store_reports_a_changed_image(tmp_path):
    key = ImageStore(tmp_path).put(b"one")
    (tmp_path / f"{key}.png").write_bytes(b"two")
    with pytest.raises(UserError, match=f"{key}.png has changed since it was recorded"):
        ImageStore(tmp_path).get(key)


def test_image_store_reports_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "images").write_text("a file")
    with pytest.raises(UserError, match="Cannot write"):
        ImageStore(tmp_path / "images").put(b"one")


def test_image_store_refuses_two_images_with_one_hash(monkeypatch):
    monkeypatch.setattr(image_store, "image_hash", lambda data: "0" * 13)
    store = ImageStore()
    store.put(b"one")
    with pytest.raises(UserError, match="Change the seed"):
        store.put(b"two")


def test_image_store_moves_its_images_to_a_folder(tmp_path):
    store = ImageStore()
    before = store.put(b"one")
    store.keep_in(tmp_path)
    after = store.put(b"two")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f"{key}.png" for key in (before, after))
