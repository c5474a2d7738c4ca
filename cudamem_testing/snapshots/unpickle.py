"""Unpickles plain containers, and nothing else.

Snapshots are exchanged as pickles, and a pickle is a program: it may import and call anything. Forbidding classes in
``pickle.Unpickler`` stops that but leaves other traps open (a memo index of four billion that allocates 64 GiB, nested
tuples as a key whose hash takes for ever). So this is a separate machine for the opcodes of protocols 2 to 5 that
make ``None``, booleans, numbers, text, bytes, lists, dicts and flat tuples. There is nothing in it that could import,
call or build an object. Every step consumes input, and memory stays proportional to the file.

The cost of each byte of a hostile pickle is bounded as well: values are counted against the bytes that they were
made of (a real snapshot uses a fifth of what is allowed), and values that hash or compare slowly are not allowed as
keys: a long tuple, a huge number, and in a dict of many keys everything that can be chosen so that all hashes are
equal (integers from 2**61 - 1 on, tuples; S. Crosby and D. Wallach, "Denial of service via algorithmic complexity
attacks", 2003). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.safe_access import type_name
from cudamem_testing.show.printable import one_line
from cudamem_testing.snapshots.native_runs import runs
from cudamem_testing.snapshots.pickle_frames import byte_in_file, without_frames
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.rows import ACTION, KNOWN_TO_RUNS, Rows, SharedRowError, check_shared

_SCALARS: Final = (str, int, float, bytes, type(None))
_INTEGER = struct.Struct("<i").unpack_from
_FLOAT = struct.Struct(">d").unpack_from
_MARK = object()
#: Bytes of input between two counts of created values; the cost of a value and of a memo entry, in bytes, and
#: the allowed cost: for any file, and for each of its bytes.
_STEP: Final = 2**18
_VALUE, _PLACE = 64, 100
_ALLOWED, _ALLOWED_PER_BYTE = 2**24, 40
#: Longest text and number in bytes, longest tuple. If a dict has more keys than ``_FEW_KEYS``, they are checked.
_LONGEST_TEXT, _LONGEST_NUMBER, _LONGEST_TUPLE, _FEW_KEYS = 2**20, 2**10, 64, 64
#: A list begins that is kept and gets items which were kept before; one of more items is not looked up among stacks.
_STACK, _LONGEST_STACK = b"\x94(j", 300
_PLACES = struct.Struct("<xI").iter_unpack
#: Python's hash of an integer is the integer itself below this prime, and its remainder above.
_MODULUS: Final = sys.hash_info.modulus
_BUILDERS = {
    0x52: "REDUCE",
    0x62: "BUILD",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x51: "BINPERSID",
    0x50: "PERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}


def unpickle(data: bytes, progress: Callable[[float], None] | None = None, *, columns: bool = False) -> Any:
    """The value pickled in ``data``. ``progress`` is called now and then with the share of bytes read.

    With ``columns``, lists may hold :class:`~cudamem_testing.snapshots.rows.Rows`, each in place of some events.

    Raises:
        SnapshotError: if the pickle is cut off or damaged, or asks for anything but plain containers; a class that
            it asks for is named.
    """
    try:
        with CollectorPaused():  # it would scan millions of small objects again and again
            return _Machine(data, progress, columns=columns).run()
    except SharedRowError:
        return unpickle(data, progress)
    except SnapshotError:
        raise
    except (IndexError, KeyError, struct.error):
        raise SnapshotError("the pickle is damaged: an instruction uses a missing value") from None
    except UnicodeDecodeError as error:
        raise SnapshotError(f"the pickle is damaged: text that is not UTF-8 ({error.reason})") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"the pickle is damaged: {error}") from None


class _Machine:
    """A stack, a memo, and a position in the input."""

    def __init__(self, data: bytes, progress: Callable[[float], None] | None = None, *, columns: bool = False) -> None:
        self.data, self.frames = without_frames(data)
        self.progress = progress
        self.at = 0
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.others: dict[int, Any] = {}  # values that are kept under numbers out of order
        self.lists: dict[bytes, list[Any]] = {}  # stacks by the instructions that make them
        self.runs = runs(self.data, self.memo, self.lists) if columns else None
        self.kept = 0  # values that were put into containers

    def run(self) -> Any:
        data, stack, memo = self.data, self.stack, self.memo
        push, end, at, stop = stack.append, len(data), 0, 0
        while True:
            if at >= stop:
                stop = self.next_count(at)
            code = data[at]
            at += 1
            # The nine most frequent instructions of snapshots come first.
            if code == 0x68:  # BINGET
                push(self.get(data[at]))
                at += 1
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x8A:  # LONG1
                size = data[at]
                at += 1 + size
                if at > end:
                    raise self.cut(at)
                push(int.from_bytes(data[at - size : at], "little", signed=True))
            elif code == 0x94:  # MEMOIZE
                if self.others:
                    self.put(len(memo) + len(self.others))
                else:
                    memo.append(stack[-1])
            elif code == 0x6A:  # LONG_BINGET
                push(self.get(int.from_bytes(data[at : at + 4], "little")))
                at += 4
            elif code == 0x28:  # MARK
                push(_MARK)
            elif code == 0x75:  # SETITEMS
                self.set_items(self.pop_to_mark())
            elif code == 0x7D:  # EMPTY_DICT
                if self.runs is not None and stack and self.after_event():
                    run = self.runs.read(at - 1)
                    if run is not None:
                        self.kept += run.values
                        push(run.rows)
                        at = run.end
                        continue
                push({})
            elif code == 0x5D:  # EMPTY_LIST
                if data[at : at + 3] == _STACK and not self.others:  # one of frames, which exist already
                    last = self.run_end(at + 2)
                    if last:
                        push(self.stack_of(data[at + 2 : last + 1]))
                        memo.append(stack[-1])
                        at = last + 1
                        continue
                push([])
            elif code == 0x71:  # BINPUT
                self.put(data[at])
                at += 1
            elif code == 0x2E:  # STOP
                if len(stack) != 1 or stack[0] is _MARK:
                    raise SnapshotError("the pickle is damaged: it ends with more or less than one value")
                return stack[0]
            else:
                self.at = at
                step = _STEPS.get(code)
                if step is None:
                    raise self.refuse(code, at - 1)
                step(self)
                at = self.at

    def put(self, place: int) -> None:
        """Keep the last value under a number: all writers of pickles count from 0 on."""
        if place < len(self.memo):  # no writer does that
            if self.runs is not None:
                raise SharedRowError
            self.lists.clear()
            self.memo[place] = self.stack[-1]
        elif place == len(self.memo) and not self.others:
            self.memo.append(self.stack[-1])
        else:
            self.others[place] = self.stack[-1]

    def get(self, place: int) -> Any:
        """The value that was kept under a number."""
        value = self.memo[place] if place < len(self.memo) else self.others[place]
        return self.runs.kept(place) if value is KNOWN_TO_RUNS and self.runs is not None else value

    def after_event(self) -> bool:
        """Whether the last item of a list is an event, so that the next one may be like it."""
        last = self.stack[-1]
        return not self.others and (type(last) is Rows or (type(last) is dict and ACTION in last))

    def one(self) -> list[Any]:
        """The stack, for an instruction that uses the last value alone: it may not be several events."""
        if self.runs is not None:
            raise SharedRowError
        return self.stack

    def run_end(self, first: int) -> int:
        """Where a run of LONG_BINGET ends with APPENDS; 0 if it is no such run, or a long one."""
        data = self.data
        last = data.find(b"e", first, first + 5 * _LONGEST_STACK)
        while last >= 0:
            places, rest = divmod(last - first, 5)
            if not rest and data[first:last:5].count(b"j") == places:
                return last
            last = data.find(b"e", last + 1, first + 5 * _LONGEST_STACK)
        return 0

    def stack_of(self, run: bytes) -> list[Any]:
        """The list of a run of LONG_BINGET and APPENDS; equal ones are one list: a history repeats its stacks."""
        known = self.lists.get(run)
        if known is None:
            known = self.lists[run] = [self.get(place) for (place,) in _PLACES(run[:-1])]
            self.kept += len(known)
        return known

    def next_count(self, at: int) -> int:
        """The position of the next count. Refuses a file without an end, or with more values than its bytes allow."""
        end = len(self.data)
        if at >= end:
            raise SnapshotError(f"the pickle ends after {end} bytes without its end mark: it is cut off or empty")
        if self.progress is not None:
            self.progress(at / end)
        values, places = self.kept + len(self.stack), len(self.memo) + len(self.others)
        if _VALUE * values + _PLACE * places > _ALLOWED + _ALLOWED_PER_BYTE * at:
            count = values + places
            raise SnapshotError(f"the pickle makes {count} values of {at} bytes: refused, no snapshot does that")
        return min(end, at + _STEP)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if self.runs is not None:
            check_shared(items)
        if type(target) is Rows or Rows in map(type, items):  # of these events the last one is meant
            raise SharedRowError
        if type(target) is not dict or len(items) % 2:
            raise SnapshotError("the pickle is damaged: items for something that is not a dict")
        if len(target) + len(items) // 2 > _FEW_KEYS:
            _check_keys(items[::2])
        self.kept += len(items)
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise SnapshotError("the pickle is damaged: items for something that is not a list")
        if self.runs is not None:
            check_shared(items)
        self.kept += len(items)
        target.extend(items)

    def pop_to_mark(self) -> list[Any]:
        stack = self.stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise SnapshotError("the pickle is damaged: a mark is missing")
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise self.cut(self.at)
        return self.data[start : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def cut(self, needed: int) -> SnapshotError:
        return SnapshotError(f"the pickle is cut off: it has {len(self.data)} bytes and needs {needed} or more")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            return "?"
        text = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return text

    def refuse(self, code: int, place: int) -> SnapshotError:
        if code in (0x63, 0x69):  # GLOBAL, INST
            return _refused_class(self.line(), self.line())
        if code == 0x93:  # STACK_GLOBAL
            return _refused_class(*self.stack[-2:])
        what, byte = _BUILDERS.get(code), byte_in_file(place, self.frames)
        if what is not None:
            return SnapshotError(f"the pickle wants to build an object ({what} at byte {byte}): refused")
        return SnapshotError(f"not a readable pickle of protocol 2 to 5: instruction 0x{code:02x} at byte {byte}")


def _refused_class(module: object, name: object) -> SnapshotError:
    text = ".".join(one_line(part[:100]) if isinstance(part, str) else "?" for part in (module, name))
    return SnapshotError(f"the pickle asks for {text}: refused, a snapshot holds plain containers only")


def _check_keys(keys: list[Any]) -> None:
    """Many keys must be of kinds whose hashes cannot be chosen to be equal."""
    for key in keys:
        if type(key) is tuple or (type(key) is int and abs(key) >= _MODULUS):
            kind = "tuples" if type(key) is tuple else "numbers of 2**61 or more"
            raise SnapshotError(f"the pickle has a dict of many keys with {kind} among them: refused")


def _check_flat(value: object) -> None:
    """Allow only scalars in tuples: nothing nested can be a key, so no hash takes for ever or recurses too deep."""
    if not isinstance(value, _SCALARS):
        raise SnapshotError(f"the pickle nests a {type_name(value)} in a tuple: refused")


def _tuple_of(machine: _Machine, items: list[Any]) -> None:
    if len(items) > _LONGEST_TUPLE:
        raise SnapshotError(f"the pickle has a tuple of {len(items)} values: refused")
    if Rows in map(type, items):
        raise SharedRowError
    machine.kept += len(items)
    for item in items:
        _check_flat(item)
    machine.stack.append(tuple(items))


def _last(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        items = [machine.stack.pop() for _ in range(size)]
        _tuple_of(machine, items[::-1])

    return step


def _text(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        text = machine.take(machine.number(size))
        if len(text) > _LONGEST_TEXT:
            raise SnapshotError(f"the pickle has a text of {len(text)} bytes: refused")
        machine.stack.append(text.decode("utf-8", "surrogatepass"))

    return step


def _raw(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(size)))

    return step


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _append(machine: _Machine) -> None:
    item = machine.stack.pop()
    machine.extend([item])


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _dict_from_mark(machine: _Machine) -> None:
    items = machine.pop_to_mark()
    machine.stack.append({})
    machine.set_items(items)


def _skip(size: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.take(size)

    return step


def _put(machine: _Machine) -> None:
    machine.put(machine.number(4))


def _signed(machine: _Machine) -> None:
    machine.stack.append(_INTEGER(machine.take(4))[0])


def _double(machine: _Machine) -> None:
    machine.stack.append(_FLOAT(machine.take(8))[0])


def _long(machine: _Machine) -> None:
    number = machine.take(machine.number(4))
    if len(number) > _LONGEST_NUMBER:
        raise SnapshotError(f"the pickle has a number of {len(number)} bytes: refused")
    machine.stack.append(int.from_bytes(number, "little", signed=True))


_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    0x80: _skip(1),  # PROTO
    0x95: _skip(8),  # FRAME
    0x4E: _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    0x4D: lambda machine: machine.stack.append(machine.number(2)),  # BININT2
    0x4A: _signed,  # BININT
    0x8B: _long,  # LONG4
    0x47: _double,  # BINFLOAT
    0x8C: _text(1),
    0x58: _text(4),
    0x8D: _text(8),
    0x43: _raw(1),
    0x42: _raw(4),
    0x8E: _raw(8),
    0x5D: lambda machine: machine.stack.append([]),
    0x29: _constant(()),
    0x61: _append,
    0x65: lambda machine: machine.extend(machine.pop_to_mark()),  # APPENDS
    0x6C: lambda machine: machine.stack.append(machine.pop_to_mark()),  # LIST
    0x73: _set_item,
    0x64: _dict_from_mark,
    0x74: lambda machine: _tuple_of(machine, machine.pop_to_mark()),  # TUPLE
    0x85: _last(1),
    0x86: _last(2),
    0x87: _last(3),
    0x72: _put,  # LONG_BINPUT
    0x30: lambda machine: machine.one().pop() and None,  # POP
    0x32: lambda machine: machine.stack.append(machine.one()[-1]),  # DUP
}
