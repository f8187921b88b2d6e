"""Collect the items of a stream into batches of limited size."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def iter_batches(
    items: Iterable[T],
    max_chars: int,
    max_items: int | None = None,
    count_chars: Callable[[Any], int] = len,
) -> Iterator[list[T]]:
    """Yield the items in batches. A batch ends with the item that reaches one of the limits.

    Args:
        items: Texts, or items that contain texts.
        max_chars: Number of characters after which a batch ends.
        max_items: Number of items after which a batch ends; None for no limit.
        count_chars: Returns the number of characters of an item.
    """
    batch: list[T] = []
    num_chars = 0
    for item in items:
        batch.append(item)
        num_chars += count_chars(item)
        if num_chars >= max_chars or len(batch) == max_items:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch
