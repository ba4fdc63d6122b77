"""From what a user names on the command line to captured graphs: a saved file, or a function that builds a model.

    counterpoint explain step.graph
    counterpoint explain train.py:build --world-size 64

The function is called inside a pretended world, with the world if it takes one argument. It answers one of

- `model, inputs`: what `torch.compile` makes of it, forward and backward; `inputs` is a tensor or a tuple of arguments;
- `model, loss_fn, batch` or `model, loss_fn, batch, optimizer`: one train step, `loss_fn(model, batch)`;
- captured graphs, one or a list.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.file import load_graphs
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.lines import user_line
from counterpoint.capture.replicate import replicate
from counterpoint.capture.step import capture_step
from counterpoint.capture.world import World, fake_world
from counterpoint.errors import CaptureError, CounterpointError, OptionError
from counterpoint.options import near_names

WORLD_SIZE = 8
"""The world of a function for which nobody names another."""
_ANSWERS = "model, inputs; or model, loss_fn, batch; or captured graphs"


def is_function(target: str) -> bool:
    """Whether a target names a function of a file rather than a file of graphs."""
    path, separator, _ = target.rpartition(":")
    return bool(separator) and path.endswith(".py")


def load_target(target: str, *, world_size: int | None = None, parallel: str | None = None) -> list[CapturedGraph]:
    """The graphs of a target.

    world_size: for a function. A saved graph has the world in which it was captured, and refuses another.
    parallel: `replicate` or `fully-shard` wraps the model that a function builds.
    """
    if is_function(target):
        return _from_function(target, world_size or WORLD_SIZE, parallel)
    if target.endswith(".py"):
        raise _no_function(target)
    graphs = list(load_graphs(target))
    sizes = sorted({graph.world_size for graph in graphs})
    if world_size is not None and sizes != [world_size]:
        raise OptionError(
            f"the graphs were captured in a world of {', '.join(map(str, sizes))}, and cannot be told for {world_size}",
            where=target,
            next_step="name the function that builds the model, file.py:function, to capture it at another size",
        )
    if parallel is not None:
        raise OptionError(
            "a saved graph cannot be made parallel any more", where=target, next_step="name the function that builds it"
        )
    return graphs


def _from_function(target: str, world_size: int, parallel: str | None) -> list[CapturedGraph]:
    path, _, name = target.rpartition(":")
    with _importable(Path(path)) as module:
        function = getattr(module, name, None)
        if not callable(function):
            raise _no_function(path, name, module)
        with fake_world(world_size) as world:
            answer = _called(function, world, target)
            with _named_failures("the capture", target, "capture it in a Python of your own, to see all of the error"):
                return _captured(answer, parallel, name, target)


def _called(function: Callable[..., Any], world: World, target: str) -> Any:
    with _named_failures("the function", target, "call it in a Python of your own, inside counterpoint.fake_world"):
        takes = len(inspect.signature(function).parameters)
        return function(world) if takes else function()


@contextmanager
def _named_failures(what: str, where: str, next_step: str) -> Iterator[None]:
    """Tell failures of the user's code as errors of ours, with the user's line."""
    try:
        yield
    except CounterpointError:
        raise
    except Exception as error:
        raise CaptureError(
            f"{what} failed with {type(error).__name__}: {error}",
            where=user_line(error) or where,
            next_step=next_step,
        ) from error


def _captured(answer: Any, parallel: str | None, name: str, target: str) -> list[CapturedGraph]:
    if isinstance(answer, CapturedGraph):
        return [answer]
    if isinstance(answer, Sequence) and answer and all(isinstance(item, CapturedGraph) for item in answer):
        return list(answer)
    if isinstance(answer, tuple) and isinstance(answer[0], nn.Module):
        model, *rest = (_parallel(answer[0], parallel), *answer[1:])
        if len(rest) == 1:
            inputs = rest[0]
            return capture_compiled(model, inputs if isinstance(inputs, tuple) else (inputs,))
        if 2 <= len(rest) <= 3 and callable(rest[0]) and not isinstance(rest[0], Tensor):
            loss_fn, batch, *optimizer = rest
            return [capture_step(model, loss_fn, batch, optimizer=optimizer[0] if optimizer else None, name=name)]
    raise CaptureError(
        f"the function answered {_described(answer)}", where=target, next_step=f"let it return {_ANSWERS}"
    )


def _parallel(model: nn.Module, parallel: str | None) -> nn.Module:
    if parallel is None:
        return model
    if parallel == "replicate":
        return replicate(model, init_sync=False)  # values do not matter here, and may not be there
    # As training scripts do: every block of a list of blocks by itself, then what is left.
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                fully_shard(block)
    return fully_shard(model)


def _described(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in answer)}"
    return f"a {type(answer).__name__}" if answer is not None else "nothing"


@contextmanager
def _importable(path: Path) -> Iterator[Any]:
    """The module of a file, with its folder on the path as for a script; what it imports stays imported."""
    if not path.is_file():
        raise CaptureError(f"there is no file {path}", next_step="check the path before the colon")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{path} cannot be imported", next_step="name a .py file")
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        with _named_failures(f"importing {path}", str(path), "keep what trains behind `if __name__ == '__main__'`"):
            spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(folder)
        _restore(path.stem, before)


def _restore(name: str, before: Any) -> None:
    if before is not None:
        sys.modules[name] = before
    else:
        sys.modules.pop(name, None)


def _no_function(path: str, name: str = "", module: Any = None) -> CaptureError:
    own = [key for key, value in vars(module).items() if inspect.isfunction(value)] if module is not None else []
    near = near_names(name, own) if name else ""
    hint = f"did you mean {near}?" if near else f"write {path}:FUNCTION" + (f"; it has {', '.join(own)}" if own else "")
    what = f"{path} has no function {name!r}" if name else "a Python file is not a graph: its function is missing"
    return CaptureError(what, next_step=hint)
