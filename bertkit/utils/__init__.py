"""Files, cache, locks, ranks, console reporting: helpers without knowledge of tasks and data."""
