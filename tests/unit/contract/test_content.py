"""The content pattern of the endpoint contract."""

import pytest

from quicbed.contract.content import PERIOD, RECORDS, content, record, visible_bytes


def test_the_first_bytes_are_the_first_records() -> None:
    assert content(40) == b"quicbed00000000\nquicbed00000001\nquicbed0"


def test_the_period_is_that_of_the_contract() -> None:
    assert (RECORDS, PERIOD) == (4093, 65_488)
    assert content(48, PERIOD - 16) == b"quicbed00000ffc\nquicbed00000000\nquicbed00000001\n"
    assert record(RECORDS) == record(0)


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 65_487, 65_488, 65_489, 10**12 + 7])
@pytest.mark.parametrize("length", [0, 1, 17, 65_488, 200_001])
def test_any_slice_is_the_slice_of_the_endless_repetition(offset: int, length: int) -> None:
    one_period = b"".join(b"quicbed%08x\n" % i for i in range(4093))
    shift = offset % len(one_period)
    assert content(length, offset) == (one_period * 6)[shift : shift + length]


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        content(-1)
    with pytest.raises(ValueError, match="negative"):
        content(1, -1)


def test_whole_records_are_visible_at_any_offset() -> None:
    assert visible_bytes(content(160)) == 160
    assert visible_bytes(b"\x01\x02" + content(1440, 5) + b"tag") == 89 * 16
    assert visible_bytes(bytes(byte ^ 0x55 for byte in content(160))) == 0


def test_what_only_looks_like_a_record_is_not_visible() -> None:
    assert visible_bytes(b"quicbed00000ffd\n") == 0  # 4093: not a record of the cycle
    assert visible_bytes(b"quicbed0000000A\n") == 0
    assert visible_bytes(b"quicbed0000000a ") == 0
