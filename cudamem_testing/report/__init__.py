"""Reports: what a run measured, as JSON and for the terminal. PYTEST_DONT_REWRITE"""
