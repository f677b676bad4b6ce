"""ONNX Runtime's interface: TrainingSession's calls, options, values, inference sessions and profiles."""
