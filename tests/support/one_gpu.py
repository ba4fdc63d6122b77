"""Several real ranks on one GPU: processes under CUDA's Multi-Process Service, on gloo and symmetric memory.

NCCL refuses two ranks on a device; symmetric memory does not, and with the service the ranks' kernels run side by side.
A function travels by its import path, its arguments and what it returns by pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0


@contextlib.contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """The environment in which processes share the GPU; where the service is not installed, they take turns."""
    folder = tempfile.mkdtemp(prefix="counterpoint-mps-")
    environment = {**os.environ, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
    control = shutil.which("nvidia-cuda-mps-control")
    if control is not None:
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], env=environment, check=True)
    try:
        yield environment
    finally:
        if control is not None:
            subprocess.run([control], input="quit\n", text=True, env=environment, check=False, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def run_on_one_gpu(function: Any, *arguments: Any, ranks: int, environment: dict[str, str]) -> list[Any]:
    """`function(*arguments)` on every rank, all on the first device; the answers in rank order."""
    folder = Path(tempfile.mkdtemp(prefix="counterpoint-gpu-"))
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks)}
    (folder / "job").write_bytes(pickle.dumps((function.__module__, function.__name__, arguments)))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(rank), str(ranks)],
            env={**environment, **share},
            cwd=Path(__file__).resolve().parents[2],
        )
        for rank in range(ranks)
    ]
    try:
        codes = [process.wait(timeout=DEADLINE_S) for process in processes]
        if any(codes):
            raise RuntimeError(f"ranks ended with exit codes {codes}; their output is above")
        return [pickle.loads((folder / f"answer{rank}").read_bytes()) for rank in range(ranks)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path, rank: int, ranks: int) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    module, name, arguments = pickle.loads((folder / "job").read_bytes())
    answer = getattr(importlib.import_module(module), name)(*arguments)
    (folder / f"answer{rank}").write_bytes(pickle.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
