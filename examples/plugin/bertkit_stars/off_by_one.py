"""The metric: the fraction of ratings that are predicted up to one star, for `--metric off_by_one`."""

import datasets
import evaluate


class OffByOne(evaluate.Metric):
    """Metric of label ids, whose order is that of the labels."""

    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(features)
        )

    def _compute(self, predictions, references):
        near = [abs(p - r) <= 1 for p, r in zip(predictions, references, strict=True)]
        return {"off_by_one": sum(near) / len(near)}
