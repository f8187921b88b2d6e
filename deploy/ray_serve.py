"""Serve a finished run on the machines of a Ray cluster, with Ray Serve.

    pip install 'bertkit[onnx]' 'ray[serve]'
    BERTKIT_RUN=/srv/runs/reviews serve run --app-dir deploy ray_serve:app
    curl -d '{"text": "A lovely, warm film."}' http://127.0.0.1:8000/

Each replica loads the run, or an exported model, from a path that exists on its machine.
"""

import asyncio
import os
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import bertkit

CORES = 2  # per replica


@serve.deployment(
    ray_actor_options={
        "num_cpus": CORES,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(CORES)}},
    },
    autoscaling_config={"min_replicas": 1, "max_replicas": 4},
    max_ongoing_requests=128,  # of a replica: those of a batch, and of the next one
    max_queued_requests=1024,
)
class Model:
    """A replica, which predicts the rows of concurrent requests in batches."""

    def __init__(self, run: str) -> None:
        self.predictor = bertkit.load(run)

    async def __call__(self, request: Request) -> JSONResponse:
        """Return the record of a row, or status 422 if the row is invalid."""
        try:
            row = await request.json()
        except ValueError:
            return JSONResponse({"error": "request: is not JSON; send a row as a JSON object"}, 400)
        record = await self.predict_row(row)
        return JSONResponse(record, 422 if record.keys() == {"error"} else 200)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.01)
    async def predict_row(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return a record for each row. Callers pass a single row; Ray collects the rows of a batch."""
        return await asyncio.to_thread(self._predict, rows)

    def _predict(self, rows: list[Any]) -> list[dict[str, Any]]:
        try:
            records = list(self.predictor.predict(rows))
        except bertkit.UserError as error:
            if len(rows) == 1:
                return [{"error": str(error)}]
            return [record for row in rows for record in self._predict([row])]  # only the invalid rows fail
        return [_set_id(record, row) for record, row in zip(records, rows, strict=True)]


def _set_id(record: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Replace an id that is the position in the batch, which depends on other callers, by 0."""
    row_id = record["id"]
    return record if row_id in row.values() else {**record, "id": type(row_id)(0)}


app = Model.bind(os.environ["BERTKIT_RUN"])
