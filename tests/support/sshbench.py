"""The benchmark `ssh` between network namespaces of this machine; to be run as root."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks import bench
from clone import ROOT
from quicbed.config.model import Project
from sshhosts import SshHosts


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "project"
        shutil.copytree(ROOT / "config", root / "config")
        (root / "workflow" / "crypto").mkdir(parents=True)
        shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", root / "workflow" / "crypto")
        os.environ["XDG_STATE_HOME"] = directory
        hosts = SshHosts(Path(directory))
        try:
            hosts.open()
            (root / "config" / "testbeds" / "pair.yaml").write_text(json.dumps(hosts.data()), encoding="utf-8")
            with hosts.inside():
                bench.bench(Project(root, {"testbed": "pair"}), ["ssh"])
        finally:
            hosts.close()


if __name__ == "__main__":
    main()
