"""Images are ids below 0 among the tokens."""

from turnwise.core.images import ImageSpan, count_images, find_images, image_hash, image_of_token, image_token_id


def test_find_images_separates_images_and_joins_their_tiles():
    one, two = image_hash(b"one"), image_hash(b"two")
    tiles = [image_token_id(one, 0), image_token_id(one, 1), 7, image_token_id(one, 2)]
    ids = [5, *tiles, 6, image_token_id(two, 0), image_token_id(two, 0), image_token_id(two, 1)]
    assert find_images(ids) == (
        ImageSpan(hash=one, start=1, end=5),
        ImageSpan(hash=two, start=6, end=7),
        ImageSpan(hash=two, start=7, end=9),
    )
    assert count_images(ids) == 3
    assert image_of_token(image_token_id(two, 16383)) == (two, 16383)


def test_image_token_ids_fit_into_int64():
    assert image_token_id("1" + "f" * 12, (1 << 14) - 1) == -(1 << 63)
