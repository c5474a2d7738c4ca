"""Tests of CUDA graphs: lint without a card, capture, replay, comparison with eager, memory of pools.

``lint`` runs a function once and lists what would break a capture. ``capture`` records it, ``captured`` replays it
and holds the assertions, ``compare`` compares replays with calls, ``liveness`` knows which tensors must live, ``pools``
counts private pools, ``nodes`` turns the graph into text, ``failure`` explains a capture that failed, ``obstacles``
and ``callables`` are about ``make_graphed_callables``. All access to the device goes through ``backend``.
PYTEST_DONT_REWRITE
"""
