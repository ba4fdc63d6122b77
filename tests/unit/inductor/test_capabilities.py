"""Ranks communicate during a compile only as they would outside of one."""

from __future__ import annotations

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode

from counterpoint.inductor.capabilities import outside_of_compiling


def _python_dispatches() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher)


def test_a_collective_meets_neither_pretended_tensors_nor_pythons_dispatcher() -> None:
    with FakeTensorMode(), enable_python_dispatcher():
        assert _python_dispatches()
        with outside_of_compiling():
            # With it, a kernel is called with the interpreter's lock held, which gloo's threads may be waiting for.
            assert not _python_dispatches()
            assert torch.ones(2).tolist() == [1.0, 1.0]
        assert _python_dispatches()
        assert isinstance(torch.ones(2), torch._subclasses.FakeTensor)
