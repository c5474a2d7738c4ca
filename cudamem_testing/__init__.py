"""Memory tests for PyTorch."""
