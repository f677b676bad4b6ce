"""What users call: sessions on arrays, and `check`. It stands on fit, lora, generation and federated learning."""
