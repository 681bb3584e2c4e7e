"""Every algorithm that a build has is negotiated over loopback, both ends tell it, and both write the same secrets.

ngtcp2 and quiche have tests of their own, which ask for more (`test_boringssl.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback
from quicbed.config.model import Project

PROJECT = Project(ROOT)
TABLE = PROJECT.algorithms
# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)

PQ = ("aioquic", "msquic", "openssl", "quinn", "tcp-tls")
STOCK = ("aioquic", "msquic", "s2n-quic")


def cases(kind: str) -> list[tuple[str, str, str]]:
    """Library, flavour and algorithm: those that are supported in stock builds, and all in those with liboqs."""
    found = [(name, "stock", one) for name in STOCK for one in getattr(PROJECT.libraries[name].supports, kind)]
    for name in PQ:
        flavour = PROJECT.libraries[name].flavours["pq"]
        has_all = flavour.algorithms == "all"
        known = [one.name for one in getattr(TABLE, kind)] if has_all or kind == "groups" else []
        found += [(name, "pq", one) for one in known if one not in flavour.unsupported]
    # the slow variants of SPHINCS+ differ from the fast ones in parameters only, so that one library will do
    return [case for case in found if case[0] == "quinn" or not (case[2].startswith("sphincs") and case[2][-1] == "s")]


@pytest.mark.parametrize(("library", "flavour", "group"), cases("groups"))
def test_a_group_is_negotiated_in_one_round_trip(loopback: Loopback, library: str, flavour: str, group: str) -> None:
    server = loopback.serve(library, "--group", group, "--content", "1", flavour=flavour)
    client = server.fetch("--group", group, "--connections", "2")
    served = server.stop(after=2)
    assert [one["ok"] for one in client + served] == [True] * 4
    for connection in client + served:
        assert connection["group"] == TABLE.group(group).tls_name
        assert connection["hello_retry_request"] is not True
        assert connection["retry"] is not True
        complete, confirmed = connection["t_handshake_complete"], connection["t_handshake_confirmed"]
        assert confirmed is None or complete <= confirmed <= connection["t_close"]
    assert all(connection["hello_retry_request"] is False for connection in client)


@pytest.mark.parametrize(("library", "flavour", "signature"), cases("signatures"))
def test_a_signature_is_made_and_verified(loopback: Loopback, library: str, flavour: str, signature: str) -> None:
    server = loopback.serve(library, "--content", "1", flavour=flavour, signature=signature)
    (client,) = server.fetch()
    (served,) = server.stop(after=1)
    name = TABLE.signature(signature).tls_name
    assert (client["ok"], served["ok"], client["signature"]) == (True, True, name)
    # nginx does not tell what it has signed with
    assert served["signature"] == name or library == "tcp-tls"


@pytest.mark.parametrize("library", ["aioquic", "msquic", "openssl", "s2n-quic", "tcp-tls"])
def test_both_ends_write_the_secrets_of_every_connection(loopback: Loopback, tmp_path: Path, library: str) -> None:
    logs = {role: tmp_path / f"{role}.keys" for role in ("client", "server")}
    server = loopback.serve(library, "--key-log", str(logs["server"]), "--content", "1")
    server.fetch("--connections", "2", "--key-log", str(logs["client"]))
    server.stop(after=2)
    kept = [{line for line in log.read_text().splitlines() if "_TRAFFIC_SECRET" in line} for log in logs.values()]
    assert kept[0] == kept[1]
    assert Counter(line.split()[0] for line in kept[0]) == dict.fromkeys(
        (
            f"{side}_{level}"
            for side in ("CLIENT", "SERVER")
            for level in ("HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0")
        ),
        2,
    )
