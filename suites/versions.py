"""What differs between the versions of torch that the suites run with: 2.7, 2.11 and 2.13."""

from __future__ import annotations

import torch

#: Up to torch 2.7; where it ends between 2.8 and 2.10 is not known.
OLDER_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)
