"""Sizes: exact against fractions, in every spelling, and shown within the rounding that people expect."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.sizes import UNITS, format_size, parse_size

HINT = "write bytes as an int, or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("0", 0),
        ("4096B", 4096),
        ("17B", 17),
        ("512MiB", 536_870_912),
        ("512 mib", 536_870_912),
        (" 1.5\tGiB ", 1_610_612_736),
        ("7GB", 7_000_000_000),
        ("7gb", 7_000_000_000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2.5MB", 2_500_000),
        ("3TB", 3_000_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("0.9B", 0),
        ("1.0009765625KiB", 1025),
        ("0." + "9" * 30 + "B", 0),  # 28 digits of a Decimal would round it up
        ("007KiB", 7168),
    ],
)
def test_parse(text: object, size: int) -> None:
    found = parse_size(text)
    assert (found, type(found)) == (size, int)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "size -1 is negative"),
        (True, "size True is a bool"),
        (False, "size False is a bool"),
        (1.5, "size 1.5 is a float"),
        (None, "size None is a NoneType"),
        (b"1MiB", "size b'1MiB' is a bytes"),
        ([1], "size is a list"),
        ("4", "size '4' has no unit"),
        ("4096", "size '4096' has no unit"),
        ("0.5", "size '0.5' has no unit"),
        ("", "size '' is not understood"),
        ("MiB", "size 'MiB' is not understood"),
        ("-1MiB", "size '-1MiB' is not understood"),
        ("+1MiB", "size '+1MiB' is not understood"),
        ("1e9", "size '1e9' is not understood"),
        ("1.", "size '1.' is not understood"),
        (".5GiB", "size '.5GiB' is not understood"),
        ("1,5GiB", "size '1,5GiB' is not understood"),
        ("1_000", "size '1_000' is not understood"),
        ("1 MiB extra", "size '1 MiB extra' is not understood"),
        ("\u0661MiB", "size '\u0661MiB' is not understood"),
        ("1MiB\x00", "size '1MiB\\x00' is not understood"),
        ("nan", "size 'nan' is not understood"),
        ("1PiB", "size '1PiB' has the unknown unit 'PiB'"),
        ("1Mi", "size '1Mi' has the unknown unit 'Mi'"),
        ("1M", "size '1M' has the unknown unit 'M'"),
        ("1 bytes", "size '1 bytes' has the unknown unit 'bytes'"),
    ],
)
def test_parse_refuses(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(value)
    assert str(caught.value) == f"{message}: {HINT}"


def test_a_size_in_a_tensor_is_refused_without_reading_it() -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(torch.ones(3, device="meta"))
    assert str(caught.value) == f"size is a Tensor: {HINT}"


def test_no_code_of_the_value_runs() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("repr was called")

    with pytest.raises(ValueError, match="size is a Loud: write"):
        parse_size(Loud())


@given(
    whole=st.integers(0, 10**30 - 1),
    fraction=st.text("0123456789", max_size=30),
    unit=st.sampled_from([*UNITS]),
    spaces=st.tuples(*[st.sampled_from(["", " ", "\t", "  "])] * 3),
    spell=st.sampled_from([str, str.lower, str.title]),
)
def test_parsing_is_exact(whole: int, fraction: str, unit: str, spaces: tuple[str, str, str], spell: object) -> None:
    number = f"{whole}.{fraction}" if fraction else str(whole)
    text = f"{spaces[0]}{number}{spaces[1]}{spell(unit)}{spaces[2]}"  # type: ignore[operator]
    assert parse_size(text) == int(Fraction(number) * UNITS[unit])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (-1, "-1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1075, "1.0 KiB"),
        (1076, "1.1 KiB"),
        (-1536, "-1.5 KiB"),
        (1048524, "1023.9 KiB"),
        (1048525, "1.0 MiB"),  # 1024.0 KiB after rounding
        (2**20, "1.0 MiB"),
        (642_148_761, "612.4 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (5 * 2**40, "5.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_format(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**60))
def test_what_is_shown_is_within_half_a_tenth_of_its_unit(size: int) -> None:
    text = format_size(size)
    unit = UNITS[text.split()[1].upper()]
    # Parsing drops a fraction of a byte, so one byte more may be missing.
    assert -Fraction(unit, 20) - 1 < parse_size(text) - size <= Fraction(unit, 20)


@given(st.integers(-(2**60), 2**60))
def test_shown_numbers_have_one_to_four_digits_and_a_sign(size: int) -> None:
    number, unit = format_size(size).split()
    assert unit in ("B", "KiB", "MiB", "GiB", "TiB")
    assert abs(float(number)) < 1024 or unit == "TiB"
    assert (number[0] == "-") == (size < 0)
    assert format_size(abs(size)) == f"{number.lstrip('-')} {unit}"


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_larger_sizes_are_never_shown_smaller(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert parse_size(format_size(small)) <= parse_size(format_size(large))
