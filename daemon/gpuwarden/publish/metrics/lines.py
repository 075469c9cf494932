"""Lines of Prometheus' text formats: labels, numbers, and the headers in which 0.0.4 and OpenMetrics 1.0 differ."""

from __future__ import annotations

import math

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
Number = int | float


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Join names and values as `gpu="0",uuid="GPU-…"`, without braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True))


def number(value: Number) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    return repr(value)


def heads(name: str, kind: str, text: str) -> tuple[bytes, bytes]:
    """Return the headers of 0.0.4 and of OpenMetrics.

    OpenMetrics names a counter without its `_total`. A counter without that suffix is not allowed: its type is unknown.
    """
    family, open_kind = name, kind
    if kind == COUNTER:
        family = name.removesuffix("_total")
        open_kind = COUNTER if family != name else "unknown"
    return (
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode(),
        f"# HELP {family} {text}\n# TYPE {family} {open_kind}\n".encode(),
    )
