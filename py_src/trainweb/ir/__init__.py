"""The output of operators and passes: expressions, buffers, calls. A floor below `ops` and `compiler`."""
