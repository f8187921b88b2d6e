"""How predictions are shown, by the form of their records: a file each, and `VIEWS`, their only list."""

from bertkit.errors import UserError, listed
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
    """The view of a run's records; None where it has none, or none of a known form.

    Raises:
        UserError: a record lacks what the first one has (its line).
    """
    if not run.records:
        return None
    view = next((view for view in VIEWS if view.fits(run.records[0])), None)
    if view is None:
        return None
    needed = run.records[0].keys() & {"id", "gold", *view.decided}
    for number, record in enumerate(run.records, 1):
        if lacking := needed - record.keys():
            raise UserError(
                f"{run.told}:{number}: lacks {listed(sorted(lacking))}; the run must be made again"
            )
    return view(run, run.records)
