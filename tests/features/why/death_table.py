"""All deaths."""

from __future__ import annotations

from features.why.deaths_gpu import GPU_DEATHS
from features.why.deaths_jobs import JOB_DEATHS
from features.why.deaths_nodes import NODE_DEATHS

DEATHS = (*GPU_DEATHS, *JOB_DEATHS, *NODE_DEATHS)
