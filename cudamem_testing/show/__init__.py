"""Show: the only package that pads and draws. PYTEST_DONT_REWRITE"""
