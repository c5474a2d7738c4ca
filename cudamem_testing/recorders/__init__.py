"""The source of all numbers for one device. PYTEST_DONT_REWRITE"""
