"""What an operator is: its base classes, its types, and what it emits. The families of operators stand on it."""
