"""Sessions on arrays and `check`, which users call. They stand on fit, lora, generation and federated learning."""
