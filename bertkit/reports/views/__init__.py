"""Views: the examples and charts of a report, with one view for each kind of prediction record."""
