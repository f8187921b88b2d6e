"""Reports of finished runs: the HTML page of a run, comparisons of runs, and the model card."""
