"""Process groups by their names."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

# Named as text, because its parameter type is another one in each version.
resolve_group: Callable[[str], dist.ProcessGroup] = getattr(c10d, "_resolve_process_group")  # noqa: B009
"""The group of a name; a RuntimeError, ValueError or KeyError where there is none."""
