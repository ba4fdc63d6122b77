"""Making the keys of the FX graph cache equal in every process.

Graphs over DTensor take device meshes as inputs, and torch's key pickles a mesh whole, with the hash that Python
happened to give it in this process. No second process ever hits such an entry. The hash is only remembered, not state:
forgetting it before the key is made leaves a key that depends on what the mesh is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh


def forget_mesh_hashes(example_inputs: Sequence[Any]) -> None:
    """Drop the remembered hashes of all meshes among the inputs of a graph, and of the meshes that those refer to."""
    for value in example_inputs:
        # Torch wraps such an input while it traces; the key is made of what is inside.
        held = getattr(value, "real_obj", value)
        if isinstance(held, DeviceMesh):
            for mesh in _with_relatives(held):
                mesh._hash = None


def _with_relatives(mesh: DeviceMesh) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    waiting: list[Any] = [mesh]
    while waiting:
        one = waiting.pop()
        if isinstance(one, DeviceMesh) and id(one) not in seen:
            seen[id(one)] = one
            waiting.append(getattr(one, "_root_mesh", None))
            waiting.extend(getattr(one, "_flatten_mapping", {}).values())
    yield from seen.values()
