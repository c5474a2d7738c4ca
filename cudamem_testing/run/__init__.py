"""Run: measuring one test, telling what is whose, and settling what is left. PYTEST_DONT_REWRITE"""
