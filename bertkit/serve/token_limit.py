"""The limit on the tokens of a request, which bounds the time to compute it."""

import asyncio
import copy
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bertkit.data.rows import Rows
from bertkit.infer.predictor import Predictor
from bertkit.serve.job_computation import REQUEST
from bertkit.serve.responses import RequestError

# A body of fewer bytes than this fraction of the limit cannot reach it with common tokenizers and windows.
UNCOUNTED_FRACTION = 1 / 8


class TokenLimit:
    """Counts the tokens of large requests, and refuses requests with too many.

    The thread of the model cannot stop while it tokenizes a text. So tokens are counted in another thread,
    before the request joins the queue of the model.

    Args:
        predictor: The predictor of the model.
        max_tokens: Maximum number of tokens of a request in all rows and windows.
    """

    def __init__(self, predictor: Predictor, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        # Each thread needs a task of its own, because a task stores the columns of the rows.
        self._predictor = dataclasses.replace(predictor, task=copy.copy(predictor.task))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bertkit-tokens")

    async def count_tokens(self, rows: list[dict[str, Any]], body_bytes: int) -> int:
        """Return the number of tokens of a request; 0 if its body is small, so that they are not counted.

        Raises:
            RequestError: The request has too many tokens.
            UserError: A row is invalid.
        """
        if body_bytes <= self.max_tokens * UNCOUNTED_FRACTION:
            return 0
        loop = asyncio.get_running_loop()
        num_tokens = await loop.run_in_executor(self._executor, self._count, rows)
        if num_tokens > self.max_tokens:
            raise RequestError(
                413,
                f"request: has {num_tokens:,} tokens; send at most {self.max_tokens:,} at a time, in fewer "
                "or shorter rows",
            )
        return num_tokens

    def close(self) -> None:
        """End the thread after its current request."""
        self._executor.shutdown(wait=False)

    def _count(self, rows: list[dict[str, Any]]) -> int:
        """Return the tokens of all sequences, or the tokens of the longest text if those are more."""
        table = Rows.from_dicts(rows, REQUEST)
        self._predictor.map_columns(table)
        parsed, _ = self._predictor.task.parse_rows(table)
        features = self._predictor.task.featurize(parsed, self._predictor.tokenizer)
        return max(int(features.sequence_lengths.sum()), features.max_untruncated_length)
