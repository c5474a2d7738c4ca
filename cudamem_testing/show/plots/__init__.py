"""Plots, drawn with matplotlib (extra ``plot``). PYTEST_DONT_REWRITE"""
