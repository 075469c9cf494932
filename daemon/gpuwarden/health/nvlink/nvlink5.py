"""Decodes the lines of NVLink 5 (Xids 144 to 150): finds the rule of the vendor's decode sheet for a line.

A line contains the unit and register words: `UNIT Fatal|Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …)`. Bits 25 to
20 of the first word are the sub-code; the second word is the error status, compared as a whole. The first word also has
the unit: in bits 9 to 5 with drivers before R575, in 6 to 0 from R575 on (one bit more in some rules). A rule matches
if name, unit bits, sub-code and status all match.

If the driver version is unknown, both positions are tried. This is safe, because rules with the same name, sub-code and
status are equal; the position only decides whether a rule matches (a test checks all of them).
"""

from __future__ import annotations

import re

from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES, Nvlink5Rule
from gpuwarden_collectors.dataclass import dataclass

NVLINK5_XIDS = frozenset(range(144, 151))
R575 = 575
"""The driver branch that moved the unit within the first word."""

_LINE = re.compile(
    r"(?P<units>[A-Z][A-Z0-9_]{1,15}(?:/[A-Z][A-Z0-9_]{1,15})?) +(?P<word>Fatal|Nonfatal) +XC\d{1,3} +i\d{1,3} +"
    r"Link +(?P<link>-?\d{1,4}) +\(0x(?P<info>[0-9a-fA-F]{1,8}) +0x(?P<status>[0-9a-fA-F]{1,8})\b"
)
_SIGN = re.compile(r"([A-Z0-9_/]{2,33}) ([FN]) ([0-9a-f]{1,8}) ([0-9a-f]{1,8})")
_ASKED = 0x03F0_07FF  # the bits of the first word that rules compare; the rest differs from line to line


@dataclass(frozen=True, slots=True)
class Nvlink5Line:
    """A parsed line. `info` and `status` are its first two register words; `fatal` is the line's own term."""

    units: tuple[str, ...]
    fatal: bool
    info: int
    status: int

    @property
    def sub_code(self) -> int:
        return self.info >> 20 & 0x3F

    @property
    def sign(self) -> str:
        """Short form of the line with the parts that rules compare; `nvlink5_sign` parses it."""
        return f"{'/'.join(self.units)} {'F' if self.fatal else 'N'} {self.info & _ASKED:x} {self.status:x}"


def nvlink5_line(text: str) -> Nvlink5Line | None:
    """Parse the text of an Xid; return None if it has another form."""
    match = _LINE.match(text)
    if match is None:
        return None
    units = tuple(match["units"].split("/"))
    return Nvlink5Line(units, match["word"] == "Fatal", int(match["info"], 16), int(match["status"], 16))


def nvlink5_sign(sign: str) -> Nvlink5Line | None:
    match = _SIGN.fullmatch(sign)
    if match is None:
        return None
    return Nvlink5Line(tuple(match[1].split("/")), match[2] == "F", int(match[3], 16), int(match[4], 16))


def branch(driver_version: str) -> int | None:
    """Return the driver branch, such as 575 for `575.51.02`; None if it is unknown."""
    first, _, rest = driver_version.strip().partition(".")
    return int(first) if rest and first.isascii() and first.isdigit() and len(first) <= 6 else None


def decode(xid: int, line: Nvlink5Line, driver: int | None) -> Nvlink5Rule | None:
    """Return the rule that matches the line with a driver of this branch (None: unknown), or None."""
    fits = (rule for rule in NVLINK5_RULES if rule.xid == xid and _fits(rule, line))
    return next((rule for rule in fits if _unit_fits(rule, line.info, driver)), None)


def _fits(rule: Nvlink5Rule, line: Nvlink5Line) -> bool:
    return rule.sub_code == line.sub_code and rule.status == line.status and not set(line.units).isdisjoint(rule.units)


def _unit_fits(rule: Nvlink5Rule, info: int, driver: int | None) -> bool:
    before = info >> 5 & (0x3F if rule.wide else 0x1F)
    since = info & (0xFF if rule.wide else 0x7F)
    return (before == rule.before and (driver is None or driver < R575)) or (
        since == rule.since and (driver is None or driver >= R575)
    )
