"""Passes: each rewrites the instructions of one step."""
