"""The files of a repetition as quic-benchmark leaves them."""

from __future__ import annotations

import json

FOLDER = "samples/samples_threshold15_dev2_delay10"

PLACE = f"{FOLDER}/quic/remote/2021-03-11 00-31-37.626624"

STAMP = "2021-03-10T23:31:{}Z"

SERVER_EVENTS = {
    "events": {
        "listening": STAMP.format("39.545"),
        "session": STAMP.format("51.797"),
        "secure": STAMP.format("51.837"),
        "data": STAMP.format("51.841"),
        "streamEnd": STAMP.format("53.841"),
        "socketClose": "2021-03-10T23:32:03.859Z",
    },
    # text for QUIC, a number for TCP
    "durations": {"handshakeDurationInNs": "39665290"},
}

CLIENT_EVENTS = {"ready": STAMP.format("51.839"), "writeToServer": STAMP.format("51.880"), "error": ""}


def ping(mean: str = "13.912", threshold: float = 20.0, delay: float = 10.0) -> bytes:
    statistics = {"avg": {"value": mean, "unit": "milliseconds"}, "mdev": {"value": "1.417", "unit": "milliseconds"}}
    return json.dumps(
        {"rtt_statistics": statistics, "benchmark threshold": threshold, "benchmark delay": delay}
    ).encode()


def sample(place: str = PLACE, **changes: bytes | None) -> dict[str, bytes]:
    transport = place.split("/")[2]
    files: dict[str, bytes | None] = {
        "ping.json": ping(),
        f"{transport}-benchmark-server.json": json.dumps(SERVER_EVENTS).encode(),
        f"{transport}-benchmark-client.json": json.dumps(CLIENT_EVENTS).encode(),
    }
    files |= {name.replace("__", "-").replace("_", "."): data for name, data in changes.items()}
    return {f"{place}/{name}": data for name, data in files.items() if data is not None}
