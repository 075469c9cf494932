"""Log lines reach the reader of stderr and never block the daemon."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PREAMBLE = "import asyncio, logging, os, sys, warnings\nfrom gpuwarden.base import log\n"


def run(script: str, stderr: int, **environ: str) -> None:
    """The script in a process of its own, whose stderr is the descriptor `stderr`."""
    for name in ("JOURNAL_STREAM", "NO_COLOR"):
        environ.setdefault(name, "")
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", PREAMBLE + script]
    subprocess.run(command, stderr=stderr, check=True, timeout=60, env={**os.environ, **environ})


def logged(tmp_path: Path, script: str) -> list[dict[str, Any]]:
    """The JSON lines that the script wrote."""
    path = tmp_path / "stderr"
    with path.open("wb") as file:
        run(script, file.fileno())
    return [json.loads(line) for line in path.read_text().splitlines()]


def on_a_terminal(script: str, **environ: str) -> str:
    master, slave = pty.openpty()
    try:
        run(script, slave, **environ)
        return os.read(master, 65_536).decode()
    finally:
        os.close(master)
        os.close(slave)


ONE_LINE = """
out = log.configure()
log.get_logger().warning("GPU lost", gpu=3)
assert out.close(30)
"""


def test_a_line_is_json_where_stderr_is_no_terminal(tmp_path: Path) -> None:
    (line,) = logged(tmp_path, ONE_LINE)
    assert list(line) == ["time", "level", "event", "gpu"]
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "event": "GPU lost", "gpu": 3}


def test_a_line_is_for_people_on_a_terminal() -> None:
    text = on_a_terminal(ONE_LINE, NO_COLOR="1")
    assert "warning" in text
    assert "GPU lost" in text
    assert "gpu=3" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_form_can_be_chosen_wherever_lines_go(tmp_path: Path, form: str) -> None:
    script = ONE_LINE.replace("configure()", f"configure('info', '{form}')")
    with (tmp_path / "log").open("wb") as file:
        run(script, file.fileno())
    for line in ((tmp_path / "log").read_text(), on_a_terminal(script)):
        if form == "json":
            assert json.loads(line)["gpu"] == 3
        else:
            assert line.split(" ", 1)[1].rstrip() == "[warning] GPU lost gpu=3"


def test_colours_only_on_a_terminal_that_wants_them() -> None:
    script = ONE_LINE.replace("out =", "os.environ.pop('NO_COLOR'); out =")
    assert "\x1b[" in on_a_terminal(script)


def test_the_journal_learns_the_priority(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with path.open("wb") as file:
        status = os.fstat(file.fileno())
        run(ONE_LINE, file.fileno(), JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}")
    assert path.read_text().startswith('<4>{"')


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    lines = logged(
        tmp_path, "o = log.configure('warning'); l = log.get_logger(); l.info('a'); l.error('b'); o.close(30)"
    )
    assert [line["event"] for line in lines] == ["b"]


def test_what_libraries_log_and_warn_comes_the_same_way(tmp_path: Path) -> None:
    script = """
out = log.configure()
logging.getLogger("aiohttp.server").error("100%% of %s", "it")
logging.getLogger("asyncio").warning("two for one %s", 1, 2)
logging.getLogger("aiohttp.access").info("GET /metrics")
logging.getLogger("odd").log(35, "between the levels")
warnings.warn("old")
try:
    1 // 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("a task failed")
assert out.close(30)
"""
    lines = logged(tmp_path, script)
    assert [line["logger"] for line in lines] == ["aiohttp.server", "asyncio", "odd", "py.warnings", "asyncio"]
    assert lines[0]["event"] == "100% of it"
    assert lines[2]["level"] == "warning"
    assert lines[4]["exception"].splitlines()[-1].startswith("ZeroDivisionError: ")


def test_values_are_bounded_and_anything_can_be_one(tmp_path: Path) -> None:
    script = """
out = log.configure()
many = {f"key{n}": n for n in range(100)}
log.get_logger().info("e" * 100_000, huge="v" * 100_000, path=__import__("pathlib").Path("/a"), bytes=b"\\xff",
    nan=float("nan"), broken="\\udcff", reasons=("a", "b"), endless=range(10**9), none=None)
log.get_logger().info("many", **many)
assert out.close(30)
"""
    line, many = logged(tmp_path, script)
    assert len(line["event"]) == len(line["huge"]) == 1_001
    assert line["nan"] == "nan"
    assert line["broken"] == "\\udcff"
    assert line["reasons"] == ["a", "b"]
    assert line["none"] is None
    assert len(many) <= 32


def test_control_characters_do_not_reach_a_terminal() -> None:
    text = on_a_terminal(
        "o = log.configure(); log.get_logger().info('bell\\x07', name='\\x1b[2Jgone\\nforged'); o.close(30)",
        NO_COLOR="1",
    )
    assert "\x07" not in text
    assert "\x1b" not in text
    assert "\\x1b[2Jgone\\nforged" in text
    assert len(text.splitlines()) == 1


STOPPED_READER = """
out = log.configure(capacity=100)
logger = log.get_logger()

async def main():
    for n in range(5_000):
        logger.info("line", number=n, text="t" * 500)
        await asyncio.sleep(0)
    assert out.dropped > 0
    print("looped", flush=True)
    assert sys.stdin.readline() == "read again\\n"
    while not await out.flush(1):
        pass
    logger.info("the last")

asyncio.run(main())
assert out.close(30)
"""


def test_a_stalled_reader_does_not_block_the_loop_and_the_number_of_lost_lines_is_logged() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PREAMBLE + STOPPED_READER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "looped\n"  # although nobody has read stderr so far
        _, stderr = child.communicate("read again\n", timeout=60)
    lines = [json.loads(line) for line in stderr.splitlines()]
    losses = [line for line in lines if line["event"].startswith("log lines dropped")]
    assert lines[-1]["event"] == "the last"
    assert sum(line["count"] for line in losses) + len(lines) - len(losses) == 5_001
    assert losses[0]["level"] == "warning"


def test_a_reader_that_is_gone_ends_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        run("o = log.configure(); log.get_logger().info('a'); assert o.close(30); assert o.dropped == 1", write)
    finally:
        os.close(write)


def test_a_process_ends_although_its_last_lines_cannot_be_written() -> None:
    read, write = os.pipe()
    try:
        run(
            "o = log.configure(); [log.get_logger().info('a' * 900) for _ in range(500)]; assert not o.close(0.1)",
            write,
        )
    finally:
        os.close(read)
        os.close(write)


def test_a_descriptor_that_somebody_made_non_blocking_loses_no_line() -> None:
    script = """
os.set_blocking(2, False)
out = log.configure()
for n in range(1_000):
    log.get_logger().info("line", number=n, text="t" * 500)
assert out.close(30)
assert out.dropped == 0
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script], stderr=subprocess.PIPE, check=True, timeout=60, env=environ
    )
    assert len(done.stderr.splitlines()) == 1_000


def test_logging_loads_no_terminal_library_and_hides_none(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    logged(tmp_path, "log.configure(); assert 'rich' not in sys.modules; import rich.table")


def test_a_finalizer_that_logs_while_a_line_is_logged_does_not_hang(tmp_path: Path) -> None:
    script = """
import gc
out = log.configure()
class Loud:
    def __init__(self): self.me = self
    def __del__(self): log.get_logger().info("gone")
gc.set_threshold(1)
for n in range(300):
    Loud()
    log.get_logger().info("line", number=n)
gc.collect()
assert out.close(30)
"""
    lines = logged(tmp_path, script)
    assert sum(line["event"] == "gone" for line in lines) == 300


NO_DESCRIPTOR_LEFT = """
import resource
out = log.configure()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
for n in range(5):
    log.get_logger().warning("a name with a control character", name="a\\x1bb")
assert out.close(30)
"""


def test_a_control_character_is_escaped_where_no_file_can_be_opened_any_more(tmp_path: Path) -> None:
    lines = logged(tmp_path, NO_DESCRIPTOR_LEFT)
    assert [line.get("name") for line in lines] == ["a\\x1bb"] * 5
