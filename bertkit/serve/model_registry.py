"""The models of the server by name, and their replacement without a lost request."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.serve.metrics import Metrics
from bertkit.serve.served_model import BatchSettings, ServedModel, load_served_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedRun:
    """A run to serve, and its name in requests."""

    name: str
    run: str


class ModelRegistry:
    """The served models by name.

    Args:
        runs: The runs. Their models are loaded by `load`.
        settings: How requests are combined.
        metrics: Receives measurements.

    Attributes:
        is_draining: Whether the server is shutting down, so that it is not ready for new clients.
    """

    def __init__(self, runs: Sequence[NamedRun], settings: BatchSettings, metrics: Metrics) -> None:
        self.runs, self.settings, self.metrics = runs, settings, metrics
        self.models: dict[str, ServedModel] = {}
        self.is_draining = False
        self._reload_lock = asyncio.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether all models are loaded and the server is not shutting down."""
        return bool(self.models) and not self.is_draining

    def find(self, name: str | None) -> ServedModel:
        """Return the model with this name; a server of one model needs no name.

        Raises:
            UserError: There is no such model, or the name is missing.
        """
        names = format_list(self.models)
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None:
            raise UserError(f"model: is missing, and there are several models; add ?model=NAME ({names})")
        if name not in self.models:
            hint = suggest_similar(name, self.models)
            raise UserError(f"model: is not served{hint or ';'} the models are {names}")
        return self.models[name]

    def load(self) -> None:
        """Load all models.

        Raises:
            UserError: A run cannot be loaded. The models are not changed.
        """
        loaded = [
            load_served_model(named.run, named.name, self.settings, self.metrics) for named in self.runs
        ]
        self.models = {model.name: model for model in loaded}
        for model in loaded:
            self.metrics.watch_queue(model.name, model.batcher.count_waiting_rows)

    async def reload(self) -> None:
        """Load all models again, and replace the old models once the new ones have predicted example rows.

        Requests in the queue of an old model are computed by the old model. If a run cannot be loaded, for
        example because the memory does not suffice for the old and the new models, the old models stay.
        """
        async with self._reload_lock:
            old_models = list(self.models.values())
            try:
                await asyncio.to_thread(self.load)
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                is_bug = not isinstance(error, UserError)
                logger.warning("not reloaded, the old models stay: %s", error, exc_info=is_bug)
                return
            self.metrics.reloads.labels("done").inc()
            logger.info("reloaded %s", format_list(self.models))
            await asyncio.gather(*(model.close() for model in old_models))

    async def close(self) -> None:
        """End the threads. Requests that are still in the queue have no client, so they are cancelled."""
        for model in self.models.values():
            model.batcher.cancel_requests()
        async with self._reload_lock:
            await asyncio.gather(*(model.close() for model in self.models.values()))
