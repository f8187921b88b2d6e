"""How predictions are shown, by the form of their records: a file each, and `VIEWS`, their only list."""

from bertkit.reports.recorded import Recorded
from bertkit.reports.views.answers import Answers
from bertkit.reports.views.base import View
from bertkit.reports.views.choices import Choices
from bertkit.reports.views.entities import Entities
from bertkit.reports.views.label_sets import LabelSets
from bertkit.reports.views.labels import Labels
from bertkit.reports.views.masked import Masked
from bertkit.reports.views.numbers import Numbers

VIEWS: list[type[View]] = [Labels, LabelSets, Numbers, Entities, Answers, Choices, Masked]


def view_of(run: Recorded) -> View | None:
    """The view of a run's records; None where it has none of a known form.

    Raises:
        UserError: a record is not what a run writes (its line).
    """
    view = next((view for record in run.records for view in VIEWS if view.fits(record)), None)
    return view(run, run.records) if view else None
