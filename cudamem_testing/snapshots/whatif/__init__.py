"""What other settings of the allocator would have changed: recorded events replayed on a model of it.

The model is that of the simulated card, without a card and without torch (``simulated/allocator_model.cpp``), compiled
on first use. PYTEST_DONT_REWRITE
"""
