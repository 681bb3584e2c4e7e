"""A controller that measures without end on a testbed over SSH, to be killed. For tests.

`sshcontroller.py NAME CONFIG OUT` prints `begin` before it connects to the hosts, `ready`, `run N` when the files of a
run have taken their place in OUT, and `lost` when a connection was.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from quicbed.config.model import Testbed, parse_model
from quicbed.testbed import HostLostError, LinkSettings, TestbedError
from quicbed.testbed.remote import SshTestbed

LINKS = (
    LinkSettings(mode="throughput", congestion_control="reno"),
    LinkSettings(mode="wire", mtu=1400, rate_mbit=100, loss_percent=1, congestion_control="reno"),
)
# Each leaves a program of its own behind, which has to end too.
SERVER = "sleep 86399 & echo begin; exec sleep 86398"
CLIENT = "sleep 86397 & echo begin; sleep 0.05; echo end"


def run(testbed: SshTestbed, link: LinkSettings, target: Path) -> None:
    testbed.apply(link)
    partial = target.with_name(f".{target.name}")
    partial.mkdir(exist_ok=True)
    output = testbed.server.workspace(partial)
    server = testbed.server.spawn(["sh", "-c", SERVER], stdout=output / "server.out", stderr=output / "server.err")
    if testbed.server.await_text(output / "server.out", "begin", server, 20):
        output = testbed.client.workspace(partial)
        client = testbed.client.spawn(["sh", "-c", CLIENT], stdout=output / "client.out", stderr=output / "client.err")
        client.wait(20)
    server.kill()
    server.wait(20)
    for host in (testbed.client, testbed.server):
        host.collect(partial)
    # where an endpoint was killed no run has finished
    log = partial / "client.out"
    if log.is_file() and log.read_text() == "begin\nend\n":
        partial.rename(target)
        print(target.name, flush=True)


def main() -> None:
    name, config, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    settings = parse_model(Testbed, json.loads(config.read_text()), config)
    print("begin", flush=True)
    with SshTestbed(name, settings) as testbed:
        print("ready", flush=True)
        for number in itertools.count():
            try:
                run(testbed, LINKS[number % 2], out / f"run {number}")
            except HostLostError:
                print("lost", flush=True)
                testbed.recover()


if __name__ == "__main__":
    try:
        main()
    except TestbedError as error:
        print(f"error {error}", flush=True)
        sys.exit(1)
