"""What reads runs of events in pickles: the library, or Python where there is no compiler."""

import pytest

from cudamem_testing.snapshots import native, native_runs, unpickle
from cudamem_testing.snapshots.event_runs import Runs

READERS = {
    "library": lambda data, memo, lists: native_runs.NativeRuns(native.loaded(), data, memo),
    "python": Runs,
}


def read_by(reader, data, progress=None):
    """What ``data`` holds, with columns that one of them read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpickle, "runs", READERS[reader])
        return unpickle.unpickle(data, progress, columns=True)
