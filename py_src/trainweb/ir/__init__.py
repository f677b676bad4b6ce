"""What operators emit and passes rewrite: expressions, buffers, calls. A floor below `ops` and `compiler`."""
