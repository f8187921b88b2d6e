"""How predictions are shown, by the form of their records: a file each, and `VIEWS`, their only list."""

from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import View
from bertkit.reports.views.classification import ClassificationView
from bertkit.reports.views.label_sets import MultiLabelView
from bertkit.reports.views.mlm import MlmView
from bertkit.reports.views.multiple_choice import MultipleChoiceView
from bertkit.reports.views.ner import NerView
from bertkit.reports.views.qa import QaView
from bertkit.reports.views.regression import RegressionView

VIEWS: list[type[View]] = [
    ClassificationView,
    MultiLabelView,
    RegressionView,
    NerView,
    QaView,
    MultipleChoiceView,
    MlmView,
]


def create_view(run: FinishedRun) -> View | None:
    """The view of a run's records; None where it has none of a known form.

    Raises:
        UserError: a record is not what a run writes (its line).
    """
    view = next((view for record in run.records for view in VIEWS if view.matches(record)), None)
    return view(run, run.records) if view else None
