"""Tables, diagrams, plots and pages: the only package that aligns text and draws. PYTEST_DONT_REWRITE"""
