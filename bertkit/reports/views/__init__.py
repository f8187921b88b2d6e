"""Views: how the predictions of each kind of record are shown in a report."""
