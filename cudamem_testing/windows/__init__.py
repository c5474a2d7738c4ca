"""Windows: counters over time, nested spans and limits at work. PYTEST_DONT_REWRITE"""
