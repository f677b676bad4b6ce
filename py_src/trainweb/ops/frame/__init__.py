"""Base classes of operators, their types and the nodes that they emit; all families import it."""
