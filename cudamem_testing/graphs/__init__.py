"""CUDA graphs under test. PYTEST_DONT_REWRITE"""
