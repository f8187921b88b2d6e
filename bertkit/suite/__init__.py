"""Several runs, one table: the GLUE tasks one after the other."""
