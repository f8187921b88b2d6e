"""The official metrics of KLUE (Park et al. 2021), computed from the records of `predictions.jsonl`.

They follow the functions of the reference implementation KLUE-baseline. All scores are fractions.
"""

import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from bertkit.errors import UserError

Records = Sequence[dict[str, Any]]
NO_RELATION = "no_relation"
REMOVE_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score_topics(records: Records) -> dict[str, float]:
    """Return `macro_f1` of topic classification."""
    from sklearn.metrics import f1_score

    gold, predicted = _read_labels(records)
    return {"macro_f1": float(f1_score(gold, predicted, average="macro"))}


def score_similarity(records: Records) -> dict[str, float]:
    """Return `pearson`, and `paraphrase_f1` of the pairs with a similarity of at least 3 of 5."""
    from scipy.stats import pearsonr
    from sklearn.metrics import f1_score

    gold, predicted = (np.array(values, float) for values in _read_labels(records))
    is_constant = gold.std() == 0 or predicted.std() == 0
    f1 = f1_score(gold >= 3.0, predicted >= 3.0, zero_division=0)
    return {
        "pearson": 0.0 if is_constant else float(pearsonr(gold, predicted)[0]),
        "paraphrase_f1": float(f1),
    }


def score_inference(records: Records) -> dict[str, float]:
    gold, predicted = _read_labels(records)
    return {"accuracy": float(np.mean([one == other for one, other in zip(gold, predicted, strict=True)]))}


def score_entities(records: Records) -> dict[str, float]:
    """Return `entity_f1` and `character_f1`, both averaged over classes.

    The classes of `entity_f1` are the entity types, and those of `character_f1` the tags of characters,
    including O, as in the reference implementation.
    """
    from sklearn.metrics import f1_score

    gold, predicted = ([tag for record in records for tag in record[key]] for key in ("gold", "predicted"))
    entities = [
        {(index, *entity) for index, record in enumerate(records) for entity in _iter_entities(record[key])}
        for key in ("gold", "predicted")
    ]
    per_type = []
    for name in sorted({entity[1] for spans in entities for entity in spans}):
        gold_spans, predicted_spans = ({span for span in spans if span[1] == name} for spans in entities)
        num_correct = len(gold_spans & predicted_spans)
        per_type.append(2 * num_correct / (len(gold_spans) + len(predicted_spans)))
    characters = f1_score(
        gold, predicted, labels=sorted({*gold, *predicted}), average="macro", zero_division=1.0
    )
    return {"entity_f1": float(np.mean(per_type)) if per_type else 0.0, "character_f1": float(characters)}


def score_relations(records: Records) -> dict[str, float]:
    """Return `micro_f1` without the label no_relation, and `auprc`, averaged over all labels.

    The area is that of the trapezoids under the curve of precision and recall.
    """
    from sklearn.metrics import auc, f1_score, precision_recall_curve

    gold, predicted = _read_labels(records)
    labels = list(records[0]["probabilities"])
    relations = [label for label in labels if label != NO_RELATION]
    micro_f1 = f1_score(gold, predicted, labels=relations, average="micro", zero_division=0)
    areas = []
    for label in labels:
        is_gold = [name == label for name in gold]
        probabilities = [record["probabilities"][label] for record in records]
        with warnings.catch_warnings():
            # A label that no row has counts, too: its recall is one for all thresholds.
            warnings.filterwarnings("ignore", "No positive class found", UserWarning)
            precision, recall, _ = precision_recall_curve(is_gold, probabilities)
        areas.append(auc(recall, precision))
    return {"micro_f1": float(micro_f1), "auprc": float(np.mean(areas))}


def score_answers(records: Records) -> dict[str, float]:
    """Return `exact_match` and `rouge_w`, the best of the gold answers of each question.

    KLUE's ROUGE-W is the F1 of the longest common substring, in characters.
    """
    exact, rouge = [], []
    for record in records:
        answer = normalize_answer(record["answer"])
        references = [normalize_answer(text) for text in record["gold"]] or [""]
        exact.append(max(answer == reference for reference in references))
        rouge.append(max(compute_rouge_w(answer, reference) for reference in references))
    return {"exact_match": float(np.mean(exact)), "rouge_w": float(np.mean(rouge))}


SCORERS: dict[str, Callable[[Records], dict[str, float]]] = {
    "ynat": score_topics,
    "sts": score_similarity,
    "nli": score_inference,
    "ner": score_entities,
    "re": score_relations,
    "mrc": score_answers,
}


def normalize_answer(text: str) -> str:
    """Return a lower-cased text without ASCII punctuation, with single spaces."""
    return " ".join(text.lower().translate(REMOVE_PUNCTUATION).split())


def compute_rouge_w(answer: str, reference: str) -> float:
    """Return the F1 of the longest common substring; of two empty texts, 1.

    As in the reference implementation, `SequenceMatcher` ignores characters that are frequent in a reference
    of at least 200 characters, so the substring that it finds there may be shorter.
    """
    if not reference:
        return float(not answer)
    matcher = SequenceMatcher(None, answer, reference)
    size = matcher.find_longest_match(0, len(answer), 0, len(reference)).size
    return 2 * size / (len(answer) + len(reference))


def _read_labels(records: Records) -> tuple[list[Any], list[Any]]:
    if not records:
        raise UserError("predictions: no rows; the validation split must not be empty")
    return [record["gold"] for record in records], [record["predicted"] for record in records]


def _iter_entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield type, start and stop of each entity in IOB2. Tags that do not continue an entity are ignored."""
    start, entity_type = 0, ""
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if prefix == "I" and name == entity_type:
            continue
        if entity_type:
            yield entity_type, start, index
        start, entity_type = index, name if prefix == "B" else ""
