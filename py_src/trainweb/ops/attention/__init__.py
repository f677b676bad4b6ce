"""Attention: ONNX's operators, Microsoft's, and linear attention."""
