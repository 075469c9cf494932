"""Secrets come from files or from systemd's credentials, never from the configuration itself, which `config show` prints.

A key that wants one holds where it lies: the absolute path of a file, or the bare name of a credential (`LoadCredential=` or
`SetCredentialEncrypted=` in the unit), which systemd puts into `$CREDENTIALS_DIRECTORY`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.files import read_regular
from gpuwarden_collectors.dataclass import dataclass

VARIABLE = "CREDENTIALS_DIRECTORY"
EXPECTED = 'an absolute path such as "/etc/gpuwarden/token", or the name of a systemd credential such as "token"'
SECRET_MAX = 16 << 10  # bytes; a token of a cloud's identity service has two or three thousand
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # no leading dot, no slash


class SecretError(Exception):
    """A secret cannot be read. The message says which, why, and what to do; it never holds any of it."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The place of a secret. `where` may be shown to anybody, as the text of this may."""

    where: str

    @classmethod
    def parse(cls, text: str) -> SecretFile:
        """Return the file that the text names: a credential, or an absolute path. Raises ValueError for other texts."""
        sound = _NAME.fullmatch(text) if "/" not in text else text.startswith("/") and text.isprintable()
        if not sound or len(text) > 4095:
            raise ValueError(f"expected {EXPECTED}, found {text[:60]!r}")
        return cls(text)

    def __str__(self) -> str:
        return self.where

    def path(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Raises SecretError for a credential where systemd gave this process none."""
        if self.where.startswith("/"):
            return Path(self.where)
        folder = environment.get(VARIABLE, "")
        if not folder.startswith("/"):
            undone = f"cannot read the credential {self.where!r}: systemd gave this process none"
            raise SecretError(
                f"{undone}; add LoadCredential={self.where}:/path to the unit, or name a file by its path"
            )
        return Path(folder) / self.where

    def read(self, environment: Mapping[str, str] = os.environ) -> str:
        """Read the secret: one line, without the white space around it. Blocks as long as the file system does. Raises SecretError."""
        text = self.text(environment).strip()
        if not text or not text.isprintable():
            raise SecretError(f"{self.path(environment)} does not hold a secret: expected one line of printable text")
        return text

    def text(self, environment: Mapping[str, str] = os.environ) -> str:
        """Read the whole file, for what has several lines, such as certificates and keys. Raises SecretError."""
        path = self.path(environment)
        try:
            data = read_regular(path, SECRET_MAX + 1)
        except OSError as error:
            raise SecretError(f"cannot read the secret {path}: {error.strerror}") from None
        if len(data) > SECRET_MAX:
            raise SecretError(f"{path} is larger than {SECRET_MAX} bytes: is it a secret?")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SecretError(f"{path} does not hold a secret: expected text in UTF-8") from None

    def exposed(self, environment: Mapping[str, str] = os.environ) -> str:
        """Why others than its owner and group can read or write it; empty if they cannot. Raises SecretError."""
        path = self.path(environment)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise SecretError(f"cannot look at the secret {path}: {error.strerror}") from None
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            return f"{path} has mode {stat.S_IMODE(mode):04o}: chmod o-rw,g-w {path}"
        return ""
