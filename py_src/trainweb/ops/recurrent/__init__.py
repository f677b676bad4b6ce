"""Recurrent layers: ONNX's operators, their cell, and ONNX Runtime training's gradients."""
