"""From `--data` to features: readers, known datasets, splits, labels and tokenized sequences."""
