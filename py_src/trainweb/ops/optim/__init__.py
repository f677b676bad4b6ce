"""Optimizers: their rules, and the operators that update parameters."""
