"""Reads stacks with the library of alone.cpp, in any Python and without torch; run as a program, it prints `right`."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from typing import Any

from cudamem_testing.recorders.native_python import this_python
from cudamem_testing.recorders.native_records import position_of

COUNT = 300


def main(path: str) -> None:
    """Raises AssertionError for what is wrong."""
    library, without_gil = ctypes.PyDLL(path), ctypes.CDLL(path)
    library.alone_forget.restype = ctypes.c_uint64
    library.alone_start(ctypes.byref(this_python()))
    note = without_gil.alone_note

    def made(number: int) -> tuple[int, weakref.ref[Any]]:
        space: dict[str, Any] = {"note": note}
        exec(f"def made_{number}():\n\n    return note()", space)
        function = space[f"made_{number}"]
        before = sys.getrefcount(function.__code__)
        stack = function()
        assert sys.getrefcount(function.__code__) == before
        return stack, weakref.ref(function.__code__)

    def frames(stack: int) -> list[Any]:
        buffer = (ctypes.c_int64 * 128)()
        depth = library.alone_stack(stack, buffer)
        found = []
        for place in range(depth):
            code = ctypes.cast(buffer[2 * place], ctypes.py_object).value
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(code))
            found.append(position_of(code, buffer[2 * place + 1]))
        return found

    seen = []
    for number in range(COUNT):
        seen.append(made(number))
        gc.collect(0)
    for number, (stack, code) in enumerate(seen):
        assert code() is not None
        inner, outer = frames(stack)[:2]
        assert (inner.qualname, inner.line, inner.filename) == (f"made_{number}", 3, "<string>"), inner
        assert (outer.qualname.split(".")[-1], outer.filename) == ("made", __file__), outer
    assert library.alone_forget() == COUNT
    gc.collect()
    assert [code() for _, code in seen] == [None] * COUNT
    assert frames(seen[0][0]) == []

    addresses = set()  # the control: addresses of code are used again
    for _ in range(COUNT):
        addresses.add(id(compile("1", "<control>", "eval")))
    assert len(addresses) < COUNT

    def work(start: int) -> None:
        for number in range(start, start + COUNT):
            stack, _ = made(number)
            assert frames(stack)[0].qualname == f"made_{number}"

    threads = [threading.Thread(target=work, args=(COUNT * (1 + i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.alone_forget() == 4 * COUNT
    print("right")


if __name__ == "__main__":
    main(sys.argv[1])
