"""Load inductor before warnings are errors: parts of torch warn about other parts of torch when they are imported."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx  # noqa: F401
