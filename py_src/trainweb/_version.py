"""The version, in one place; the build refuses a package.json that says another."""

__version__ = "0.1.0"
