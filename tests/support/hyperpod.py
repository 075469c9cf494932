"""The program in the documentation that hands a failed node over to SageMaker HyperPod."""

from __future__ import annotations

from pathlib import Path

from support.needs import needed

PAGE = Path(__file__).parents[2] / "docs/use/exclusion.md"


def program(folder: Path) -> Path:
    """Write the program of the page. `calls` has a line for each of its runs."""
    needed("jq")
    (text,) = [block for block in PAGE.read_text().split("```")[1::2] if "repair.hyperpod" in block]
    file = folder / "gpuwarden-hyperpod"
    file.write_text(
        text.removeprefix("sh\n").replace("message=$(cat)\n", f"message=$(cat); echo run >>{folder}/calls\n")
    )
    file.chmod(0o755)
    return file
