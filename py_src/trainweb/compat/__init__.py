"""Older names of the onnxruntime Python package."""
