"""Doctor's row of the runtime that has the labels of containers: a real dockerd, none, and one that hangs."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Grade
from gpuwarden.features.evacuation.doctor import container_labels
from support.docker import DOCKER, Docker

pytestmark = DOCKER


def test_doctor_shows_whether_the_labels_can_be_read(docker: Docker, tmp_path: Path) -> None:
    config = Config(node="node7")

    def row(path: Path) -> tuple[Grade, str, str]:
        (labels_row,) = container_labels(replace(config, jobs=replace(config.jobs, docker=path)))
        return labels_row.grade, labels_row.found, labels_row.to_do

    assert row(docker.socket)[:2] == (Grade.OK, f"{docker.socket} answers")
    assert row(tmp_path / "none")[:2] == (Grade.OK, f"no Docker or Podman listens at {tmp_path / 'none'}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        refused = row(tmp_path / "silent")
        assert (refused[0], "Connection refused" in refused[1]) == (Grade.WARN, True)
        silent.listen()
        hung = row(tmp_path / "silent")
        assert (hung[0], "has not answered within 1 s" in hung[1], "dockerd hangs" in hung[2]) == (
            Grade.WARN,
            True,
            True,
        )
