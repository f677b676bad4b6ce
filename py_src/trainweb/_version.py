"""The version, in one place: the wheel and the npm package both take it from here."""

__version__ = "0.1.0"
