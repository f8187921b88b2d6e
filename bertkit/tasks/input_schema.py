"""The columns that a task reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bertkit.errors import UserError

if TYPE_CHECKING:
    from bertkit.data.rows import Rows

# What a column of a row to predict holds; "words" is a list of words or a text.
ColumnKind = Literal["text", "words", "texts", "optional text", "optional span"]


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The columns that a task reads, and the flags of `bertkit predict` that fill them.

    Attributes:
        text_columns: Columns of texts, in reading order.
        gold_columns: Columns of labels, which prediction ignores.
        hidden_columns: Input columns that are not copied to the predictions.
        columns_by_flag: Column that each text flag of `bertkit predict` fills, in the order of the columns.
        group_columns: Possible names of the column that defines groups; the first name that exists is used.
            Adjacent rows with the same value form a group and must be predicted together.
        span_columns: Columns of spans of the first text, which may be missing if the text marks the spans.
        example_text: The first text of an example row.
        column_kinds: What those text columns hold that do not hold one text.
        label_key: Key of a label fix that selects one of several labels of a row; None for a single label.
    """

    text_columns: tuple[str, ...]
    gold_columns: frozenset[str] = frozenset()
    hidden_columns: frozenset[str] = frozenset()
    columns_by_flag: Mapping[str, str] = field(default_factory=dict)
    group_columns: tuple[str, ...] = ()
    span_columns: tuple[str, ...] = ()
    example_text: str = "..."
    column_kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    label_key: Literal["word", "label"] | None = None

    def build_rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return rows that combine the texts of several flags.

        A flag with a single text fills its column in all rows with this text.

        Args:
            texts_by_flag: The texts that the user passed, by flag; see `columns_by_flag`.

        Raises:
            UserError: The flags have different numbers of texts.
        """
        num_rows = max(map(len, texts_by_flag.values()))
        if any(len(texts) not in (1, num_rows) for texts in texts_by_flag.values()):
            counts = ", ".join(
                f"{len(texts)} of --{flag.replace('_', '-')}" for flag, texts in texts_by_flag.items()
            )
            raise UserError(f"{counts}: the numbers differ; pass equally many of each, or a single one")
        columns = {
            self.columns_by_flag[flag]: texts if len(texts) == num_rows else texts * num_rows
            for flag, texts in texts_by_flag.items()
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def sample_texts(self, rows: "Rows", count: int) -> list[str]:
        """Return the first texts of parsed rows."""
        texts: list[str] = []
        for row in rows.select(range(min(len(rows), count))):
            for column in self.text_columns:  # of texts, or of lists of texts, which may be missing
                values = [row[column]] if isinstance(row[column], str) else row[column] or ()
                texts += [text for text in values if isinstance(text, str)]
        return texts[:count]

    def make_example_row(self) -> dict[str, Any]:
        """Return a row with placeholder texts, for the example code of the model card."""
        first_text = dict.fromkeys(self.text_columns[:1], self.example_text)
        return dict.fromkeys(self.text_columns, "...") | first_text

    def get_column_kinds(self) -> dict[str, ColumnKind]:
        """Return what the columns of a row to predict hold: texts, spans and the key of a group."""
        kinds = {column: self.column_kinds.get(column, "text") for column in self.text_columns}
        spans: dict[str, ColumnKind] = dict.fromkeys(self.span_columns, "optional span")
        groups: dict[str, ColumnKind] = dict.fromkeys(self.group_columns[:1], "optional text")
        return kinds | spans | groups

    def get_group_ids(self, rows: "Rows") -> Sequence[Any] | None:
        """Return the group of each row; None if rows can be predicted one by one."""
        from bertkit.data.columns import find_column

        for name in self.group_columns:
            if column := find_column(rows, name):
                return rows[column]
        return None
