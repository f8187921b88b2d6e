"""A plugin for bertkit: ratings of 1 to 5 stars."""
