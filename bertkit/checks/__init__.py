"""A look at the data before any training: what `bertkit check` finds."""
