"""Verdicts: pure judges that make findings of facts, and the policy that decides what they do. PYTEST_DONT_REWRITE"""
