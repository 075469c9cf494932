"""NVIDIA's own assembler and disassembler, from an environment of their own: `make ptxas`."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.needs import PTXAS, unmet

ROOT = Path(__file__).parents[3]
_HOME = ROOT / ".venv-ptxas"


@dataclass(frozen=True, slots=True)
class Assembled:
    """An entry point, for one architecture."""

    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of registers that had to be kept in memory, stored and loaded."""
    code: tuple[str, ...]
    """Machine instructions; empty if they were not asked for."""


def assemble(text: str, architecture: int, folder: Path, *, code: bool = False) -> dict[str, Assembled]:
    """The entry points of a PTX text as ptxas makes them for sm_`architecture`."""
    source, made = folder / "kernels.ptx", folder / f"kernels.{architecture}"
    source.write_text(text)
    notes = _run("ptxas", "-v", f"-arch=sm_{architecture}", str(source), "-o", str(made))
    assert "warning" not in notes, notes
    entries = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        notes,
        re.DOTALL,
    )
    machine = _machine_code(made) if code else {}
    return {
        name: Assembled(int(used), int(stored) + int(loaded), machine.get(name, ()))
        for name, stored, loaded, used in entries
    }


def _machine_code(made: Path) -> dict[str, tuple[str, ...]]:
    sections = re.findall(
        r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", _run("nvdisasm", "--print-code", str(made)), re.DOTALL | re.MULTILINE
    )
    return {
        name: tuple(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?) *;", body, re.MULTILINE)) for name, body in sections
    }


def _run(tool: str, *arguments: str) -> str:
    programs = [
        path for path in _HOME.glob(f"lib/python*/site-packages/nvidia/*/bin/{tool}") if os.access(path, os.X_OK)
    ]
    if not programs:
        unmet(f"{PTXAS}: no {tool} in {_HOME.name}")
    done = subprocess.run([programs[0], *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
