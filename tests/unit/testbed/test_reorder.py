"""Which packets are put back and how far, and what the program that does it is made of."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from pydantic import ValidationError

from quicbed.testbed import LinkSettings, reorder
from quicbed.testbed.loss import drawn
from quicbed.testbed.reorder import order

SEED = 42
COUNT = 5000


@pytest.mark.parametrize(("permille", "packets"), [(1, 1), (10, 8), (10, 830), (500, 1), (500, 3), (1000, 2)])
def test_a_chosen_packet_leaves_right_after_the_one_that_comes_so_many_later(permille: float, packets: int) -> None:
    left = list(order(SEED, permille, packets, COUNT))
    chosen = {number for number in range(COUNT) if drawn(SEED, number) < reorder.threshold(permille)}
    assert sorted(left) == list(range(COUNT))
    place = {number: index for index, number in enumerate(left)}
    # the others keep their order
    others = [number for number in left if number not in chosen]
    assert others == sorted(others)
    for number in sorted(chosen):
        last = number + packets
        if last < COUNT and last not in chosen:
            assert place[number] == place[last] + 1
        # nothing that came later than that has left before it
        assert all(before <= last for before in left[: place[number]])


def test_how_many_are_chosen_is_what_was_asked_for() -> None:
    assert reorder.threshold(0) == 0
    assert reorder.threshold(1000) == 2**32
    assert list(order(SEED, 0, 1, COUNT)) == list(range(COUNT))
    chosen = sum(drawn(SEED, number) < reorder.threshold(10) for number in range(COUNT))
    assert abs(chosen - COUNT / 100) < 5 * (COUNT / 100) ** 0.5
    assert list(order(SEED, 10, 8, COUNT)) != list(order(SEED + 1, 10, 8, COUNT))


def test_every_jump_of_the_program_ends_at_an_instruction_and_every_way_leaves() -> None:
    state, frames = 7, 9
    code = reorder.program(state, frames)
    assert len(code) % 8 == 0
    found = [struct.unpack_from("=BBhi", code, begin) for begin in range(0, len(code), 8)]
    second = {place + 1 for place, (operation, *_) in enumerate(found) if operation == 0x18}
    reached, waiting = set(), [0]
    while waiting:
        place = waiting.pop()
        if place in reached:
            continue
        assert place < len(found), "a way leads beyond the end"
        assert place not in second, "a way leads into the middle of an instruction"
        reached.add(place)
        operation, _, offset, _ = found[place]
        if operation == 0x95:
            continue
        is_jump = operation & 7 == 5 and operation != 0x85
        assert not is_jump or offset >= 0, "a loop, which may not end"
        waiting += [place + 1 + offset] if is_jump else []
        waiting += [place + (2 if operation == 0x18 else 1)] if operation != 0x05 else []
    assert reached | second == set(range(len(found)))
    maps = Counter(value for operation, registers, _, value in found if operation == 0x18 and registers >> 4 == 1)
    assert maps == {state: 1, frames: 3}


def test_slots_are_enough_for_the_longest_way_on_several_processors() -> None:
    assert reorder.SLOTS >= 2 * 1000
    assert LinkSettings(mode="wire", reorder_permille=1, reorder_packets=1000).reorder_packets == 1000
    # a frame of the largest MTU with its Ethernet header
    assert LinkSettings(mode="wire", mtu=1500, reorder_packets=1).mtu + 14 <= reorder.FRAME_BYTES


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "throughput", "reorder_packets": 1}, "reorder_packets needs mode `wire`"),
        ({"mode": "wire", "mtu": 9000, "reorder_packets": 1}, "an MTU of at most 1500"),
        ({"mode": "wire", "reorder_permille": 1}, "reorder_permille needs reorder_packets"),
        ({"mode": "wire", "reorder_permille": 501, "reorder_packets": 1}, "reorder_permille"),
        ({"mode": "wire", "reorder_permille": 1, "reorder_packets": 1001}, "reorder_packets"),
    ],
)
def test_a_link_that_cannot_put_packets_back_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LinkSettings.model_validate(settings)
