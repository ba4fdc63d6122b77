"""The `torch.compile` backend: `torch.compile(model, backend="counterpoint", options={...})`.

Torch finds it through the entry point `torch_dynamo_backends`; nobody needs to import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from counterpoint._torch import require_supported_torch


def counterpoint(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph that dynamo captured.

    `options` takes ours (see `counterpoint.options.CompileOptions`) and any setting of `torch._inductor.config`;
    `mode` is torch's own. What was compiled, and what became of each collective, is in `counterpoint.reports()`.
    """
    require_supported_torch()
    # Imported late: an unsupported torch may lack their private names, and without code generation inductor's slow
    # imports are not needed.
    from counterpoint.inductor.plan import make_plan
    from counterpoint.inductor.request import read_request

    plan = make_plan(read_request(options, mode), example_inputs)
    if plan.codegen == "eager":
        from counterpoint.inductor.codegen_eager import compile_without_codegen

        return compile_without_codegen(gm, example_inputs, plan)
    from counterpoint.inductor.codegen_inductor import compile_with_inductor

    return compile_with_inductor(gm, example_inputs, plan)
