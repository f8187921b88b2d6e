"""The list of views, and the choice of the view that fits the records of a run."""

from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import View
from bertkit.reports.views.mlm import MlmView
from bertkit.reports.views.multiple_choice import MultipleChoiceView
from bertkit.reports.views.ner import NerView
from bertkit.reports.views.qa import QaView
from bertkit.reports.views.sequence import ClassificationView, MultiLabelView, RegressionView

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
    """Create the view of a run's records; None if no view fits them.

    Raises:
        UserError: a record is invalid (its line).
    """
    view = next((view for record in run.records for view in VIEWS if view.matches(record)), None)
    return view(run, run.records) if view else None
