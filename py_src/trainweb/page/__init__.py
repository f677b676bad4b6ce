"""Python's part in a page: the bridge that the worker calls, and bundles."""
