"""The requests that use a model at present."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class OpenRequests:
    """A count of the requests that use a model, so that none of them loses its model in a reload."""

    def __init__(self) -> None:
        self._count = 0
        self._none_is_open = asyncio.Event()
        self._none_is_open.set()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a request during the block."""
        self._count += 1
        self._none_is_open.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none_is_open.set()

    async def wait_until_none(self) -> None:
        """Wait until no request is open."""
        await self._none_is_open.wait()
