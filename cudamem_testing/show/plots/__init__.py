"""Pictures, drawn with matplotlib where it is installed (extra ``plot``). PYTEST_DONT_REWRITE"""
