"""Performance and accuracy regression tests for distributed PyTorch."""

__version__ = "0.1.0"
