"""What this machine can do, as the reason why a test is skipped: a text, or None when nothing is missing."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path


def missing_for_cxx() -> str | None:
    """Inductor's CPU code is C++ that includes Python's headers."""
    compilers = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    if not any(shutil.which(name) for name in compilers):
        return f"no C++ compiler found (looked for {', '.join(compilers)}); on Debian: apt-get install g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python.h not found; on Debian: apt-get install python3-dev"
    return None


def missing_for_gpu() -> str | None:
    """A CUDA device that torch can use."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def missing_for_browser() -> str | None:
    """A Chromium that can be driven without a screen."""
    from tests.support.browser import NAMES, find_browser

    return (
        None
        if find_browser()
        else f"no browser found (looked for {', '.join(NAMES)}); on Debian: apt-get install chromium"
    )


def missing_for_messages() -> str | None:
    """Point-to-point communication as operators of a graph."""
    import torch
    import torch.distributed._functional_collectives

    operators = torch.ops._c10d_functional
    if hasattr(operators, "isend") and hasattr(operators, "batch_p2p_ops"):
        return None
    return f"torch {torch.__version__} has no operators that send and receive; torch 2.12 and newer have them"


def missing_for_row_scales() -> str | None:
    """Products of 8-bit floats with a scale for each row, computed on the CPU."""
    import torch

    left = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(left, left.t(), torch.ones(16, 1), torch.ones(1, 16))
    except RuntimeError:
        return f"torch {torch.__version__} takes one scale for a whole tensor on the CPU"
    return None


# Marker -> what tells why a test with it cannot run here.
NEEDS: Mapping[str, Callable[[], str | None]] = {
    "browser": missing_for_browser,
    "cxx": missing_for_cxx,
    "gpu": missing_for_gpu,
    "messages": missing_for_messages,
    "row_scales": missing_for_row_scales,
}
