"""An allocator's record, and what was live at any moment of it. PYTEST_DONT_REWRITE"""
