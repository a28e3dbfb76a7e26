"""The package's version; pyproject.toml and the wheels of the iterations have the same."""

__version__ = "0.1.0"
