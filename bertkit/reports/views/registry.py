"""The list of all views, and the choice of the view for a run."""

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
    """Create the view for the records of a run; None if no view matches them.

    Raises:
        UserError: A record is invalid; the message has its line number.
    """
    view = next((view for record in run.records for view in VIEWS if view.matches(record)), None)
    return view(run, run.records) if view else None
