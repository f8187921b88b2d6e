"""Several runs, one table: the GLUE tasks one after the other, the rows of the feature-based approach."""
