"""The run of a linear model of texts, which is fitted at once: without steps, checkpoints and a trainer."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.methods.distill import Distillation
from bertkit.methods.linear_text import LinearText
from bertkit.models.linear_text import LinearTextModel
from bertkit.run.prepare import PreparedRun
from bertkit.run.session import suggest_study
from bertkit.run.upload import format_resume_command
from bertkit.run_directory import RunDir
from bertkit.stats.judgement import TrainingFacts
from bertkit.tasks.base import Outputs
from bertkit.training.failures import get_peak_memory_mb
from bertkit.utils.files import stage_files


class LinearTextSession:
    """The model of a run, and its outputs for each split, by the methods of `Session` that a run calls."""

    model: LinearTextModel
    best_step = None

    def __init__(self, prepared: PreparedRun, folder: Path, method: LinearText) -> None:
        self.prepared, self.method = prepared, method
        self.folder, self.run_dir = folder, RunDir(folder)
        self.log_history: list[dict[str, Any]] = []

    def train(self) -> dict[str, Any]:
        """Fit the model, and return the section "training" of `metrics.json`."""
        prepared, rows = self.prepared, self.prepared.splits["train"]
        task: Any = prepared.task
        started = time.perf_counter()
        labels = task.get_training_labels(rows)
        for teacher in prepared.methods:
            if isinstance(teacher, Distillation):
                rows, labels = teacher.add_predictions(prepared, labels)
        self.model = self.method.fit(task, prepared.model_config, prepared.model_source, rows, labels)
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "steps": 0,
            "examples_per_second": len(rows) / seconds,
            "peak_memory_mb": get_peak_memory_mb(),
            "precision": prepared.precision,
            "device": "cpu",
            "features": self.model.weight.shape[1],
        }

    def finish(self) -> dict[str, Outputs]:
        """Return the outputs for each evaluation split."""
        for method in self.prepared.methods:
            method.finish(self.prepared, self.model)
        columns, features = self.prepared.task.input_schema.text_columns, self.prepared.features
        return {
            split: Outputs(
                self.model.compute_logits([list(rows[name]) for name in columns]), features[split], rows
            )
            for split, rows in self.prepared.splits.items()
            if split != "train"
        }

    def compute_scope_features(self) -> dict[str, dict[str, np.ndarray]]:
        """Return {}: `--out-of-scope` is refused."""
        return {}

    def gather_weights(self) -> None:
        """Return None: the weights are not sharded."""

    def update_config(self, fitted: Mapping[str, Any]) -> None:
        self.prepared.model_config.update(fitted)

    def collect_training_facts(self) -> TrainingFacts:
        """Return what the advice on the run depends on: nothing about steps, tokens and lengths applies."""
        return TrainingFacts(
            steps=None,
            longer_training="",
            is_last_best=False,
            unit=self.prepared.task.definition.unit,
            study=suggest_study(self.prepared, self.run_dir),
        )

    def write_model(self, weights: None) -> None:
        with stage_files(self.folder) as staging:
            self.model.save(staging, self.prepared.model_config.to_diff_dict())

    @property
    def resume_hint(self) -> str:
        prepared = self.prepared
        command = format_resume_command(prepared.task.definition.name, self.folder, prepared.config)
        return f"start it again with: {command}"
