"""Reading the `options=` and `mode=` of a `torch.compile` call: ours are checked, inductor's pass through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config

from counterpoint.errors import OptionError
from counterpoint.options import CompileOptions, EffectiveOptions, described, effective, near_names

SOURCE = 'options= of torch.compile(..., backend="counterpoint")'
MODE = "mode"
"""`torch.compile` refuses `mode=` beside `options=`, so `options={"mode": ...}` is how to have both."""


@dataclass(frozen=True)
class Request:
    """What one `torch.compile` call asks for, and what the environment and the project file add."""

    effective: EffectiveOptions
    torch_settings: Mapping[str, Any]
    """Settings of inductor for our compiles, those of the mode included."""
    text: str
    """The call's own options as given, for the records."""

    @property
    def options(self) -> CompileOptions:
        """Our options in force."""
        return self.effective.options

    def chose(self, name: str) -> bool:
        """Whether somebody gave our option a value, rather than the default."""
        return any(s.name == name and s.source != "default" for s in self.effective.settings)


def read_request(options: Mapping[str, Any] | None, mode: str | None) -> Request:
    """Split and check the options of a `torch.compile` call."""
    given = {str(key).replace("-", "_"): value for key, value in (options or {}).items()}
    if mode is not None:
        given[MODE] = mode
    text = " ".join(f"{key}={value!r}" for key, value in sorted(given.items()))
    mode = given.pop(MODE, None)
    names = described(CompileOptions)
    ours = {key: value for key, value in given.items() if key in names}
    theirs = {key: value for key, value in given.items() if key not in names}
    known = inductor_config.get_config_copy()
    for key in theirs:
        if key not in known:
            raise _unknown_option(key, names, known)
    return Request(effective(ours, source=SOURCE), _torch_settings(mode, theirs), text)


def _unknown_option(key: str, ours: Collection[str], theirs: Collection[str]) -> OptionError:
    # Ours are few, so a far guess helps; of inductor's hundreds only a close one does.
    near = " or ".join(filter(None, [near_names(key, ours), near_names(key, theirs, cutoff=0.8)]))
    return OptionError(
        f"unknown option {key!r}",
        where=SOURCE,
        next_step=(
            f"did you mean {near}?"
            if near
            else f"ours are {', '.join(sorted(ours))}; settings of torch._inductor.config pass through"
        ),
    )


def _torch_settings(mode: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        # Torch's own reader knows the modes, checks types and prepares CUPTI for CUDA graphs, differently per version.
        read = torch._TorchCompileInductorWrapper(mode, dict(settings), None)
    except RuntimeError as error:
        raise OptionError(str(error).split(", known options are")[0], where=SOURCE) from error
    return dict(read.config)
