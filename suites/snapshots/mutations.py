"""Damage done to snapshots: small changes of bytes and of values, reproducible from a number."""

from __future__ import annotations

import random

ODD = (None, -1, 0, 1, 2**62, 2**63, 2**80, 1.5, "", "alloc", b"x", [], {}, (), (0, 0), True, float("nan"))


def damaged_bytes(data: bytes, seed: int) -> bytes:
    """A few bytes changed, removed, doubled, or the end cut off."""
    generator = random.Random(seed)
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(changed) or 1)
        choice = generator.randrange(5)
        if choice == 0 and changed:
            changed[place] = generator.randrange(256)
        elif choice == 1:
            del changed[place : place + generator.randint(1, 40)]
        elif choice == 2:
            changed[place:place] = changed[place : place + generator.randint(1, 40)]
        elif choice == 3:
            changed[place:place] = bytes(generator.randrange(256) for _ in range(generator.randint(1, 9)))
        else:
            del changed[max(1, place) :]
    return bytes(changed)


def damaged_values(snapshot: dict, seed: int) -> dict:
    """A copy in which a few entries are removed, replaced by something odd, exchanged or doubled."""
    generator = random.Random(seed)
    copy = _copy(snapshot)
    for _ in range(generator.randint(1, 6)):
        holder = _pick(copy, generator)
        if isinstance(holder, dict):
            key = generator.choice(list(holder))
            if generator.random() < 0.3:
                del holder[key]
            else:
                holder[key] = generator.choice(ODD)
        else:
            place = generator.randrange(len(holder))
            choice = generator.randrange(4)
            if choice == 0:
                del holder[place]
            elif choice == 1:
                holder[place] = generator.choice(ODD)
            elif choice == 2:
                other = generator.randrange(len(holder))
                holder[place], holder[other] = holder[other], holder[place]
            else:
                holder.insert(place, holder[generator.randrange(len(holder))])
    return copy


def _copy(value):
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _pick(value, generator):
    """Some container inside, deeper ones more often than not."""
    while True:
        inside = value.values() if isinstance(value, dict) else value
        inner = [item for item in inside if isinstance(item, (dict, list)) and item]
        if not inner or generator.random() < 0.2:
            return value
        value = generator.choice(inner)
