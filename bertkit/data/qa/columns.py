"""Which column of a table of questions is which: named by the user, else by the usual names."""

from bertkit.data.columns import find_column, guess_column, require_column
from bertkit.data.qa import articles
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list

ColumnNames = tuple[str, str, str]  # the columns of questions, contexts and answers

QUESTION_COLUMNS = ["question", "query"]
CONTEXT_COLUMNS = ["context", "paragraph", "passage", "text", "document"]
ANSWER_COLUMNS = ["answers", "answer", "answer_text"]
NESTED_COLUMNS: ColumnNames = ("question", "context", "answers")


def resolve_columns(
    rows: Rows, question: str | None, context: str | None, answers: str | None
) -> ColumnNames:
    """The columns of questions, contexts and answers: as named, or guessed; rows of articles have their own.

    Raises:
        UserError: there is none, or one is two things, or one of articles is named.
    """
    articles.require_questions(rows)
    told = {"question": question, "context": context, "answers": answers}
    if articles.is_nested(rows):
        _refuse_named(rows, told)
        return NESTED_COLUMNS
    for role, column in told.items():
        if column is not None:
            require_column(rows, column, f"--{role}-column")
    names = (
        question or guess_column(rows, QUESTION_COLUMNS, "question"),
        context or guess_column(rows, CONTEXT_COLUMNS, "context"),
        answers or guess_column(rows, ANSWER_COLUMNS, "answers"),
    )
    for role, column in zip(told, names, strict=True):
        if names.count(column) > 1 or column == find_id_column(rows):
            raise UserError(f"--{role}-column {column}: is named for something else too; name another column")
    return names


def _refuse_named(rows: Rows, told: dict[str, str | None]) -> None:
    for role, column in told.items():
        if column not in (None, role):  # a finished run repeats the names that articles have
            raise UserError(
                f"--{role}-column {column}: {rows.files[0]} holds articles of paragraphs, which have names "
                f"of their own; leave out --{role}-column"
            )


def match_split_columns(rows: Rows, names: ColumnNames) -> ColumnNames:
    """A split's columns, each as the training rows call it, or by a usual name; it may have no answers.

    Where questions are called otherwise the split has another form: there the usual names go first, since
    what is called as theirs may be something else.
    """
    theirs = [name if name in rows.columns else None for name in names]
    own: list[str | None] = list(theirs) if theirs[0] else [None] * len(names)
    for role, usual in enumerate((QUESTION_COLUMNS, CONTEXT_COLUMNS, ANSWER_COLUMNS)):
        if own[role] is None:
            likely = [*(find_column(rows, name) for name in usual), theirs[role]]
            own[role] = next((column for column in likely if column and column not in own), None)
    question, context, answers = own
    if question is None or context is None:
        role = 0 if question is None else 1
        raise UserError(
            f"{rows.files[0]}: no column looks like the {NESTED_COLUMNS[role]} (it has {format_list(rows.columns)}); "
            f"call it {names[role]!r}, as in the training rows"
        )
    return question, context, answers or names[2]


def find_id_column(rows: Rows) -> str | None:
    """The column of the questions' identifiers, if there is one."""
    return next(filter(None, (find_column(rows, name) for name in articles.ID_COLUMNS)), None)
