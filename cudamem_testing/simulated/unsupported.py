"""Recognises the errors of what a simulated card cannot do. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.errors import exception_chain
from cudamem_testing.safe_access import is_a, is_one_of
from cudamem_testing.simulated.bindings import SimulatedCardError

#: Errors of torch about something that a simulated card lacks, by a part of their text.
NEEDS = {
    "a simulated card has no ": None,  # its own words
    "doesn't have NCCL built in": "a simulated card has no NCCL: run this on a real card",
    "Could not find any NVRTC library": "a simulated card compiles no CUDA kernels: run this on a real card",
    "CUDA is not available": "a simulated card shares no memory with other processes: run this on a real card",
    "type torch.cuda.": "a simulated card has no types such as torch.cuda.FloatTensor: run this on a real card",
    "CUDA_HOME environment variable is not set": "a simulated card runs no CUDA extensions: run this on a real card",
    "Cannot find a working triton installation": "a simulated card runs no Triton kernels: run this on a real card",
}


def unsupported(error: BaseException) -> str | None:
    """What of an error, or of those that caused it, a simulated card cannot do; ``None`` for other errors."""
    for one in exception_chain(error):
        if is_a(one, SimulatedCardError):
            return str(one)
        if is_one_of(one, RuntimeError, OSError, TypeError):
            text = str(one)
            for part, reason in NEEDS.items():
                if part in text:
                    return reason or text.splitlines()[0]
    return None
