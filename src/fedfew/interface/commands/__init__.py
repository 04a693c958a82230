"""One file per verb of the command line; torch and the layers below are imported inside the functions, when needed."""
