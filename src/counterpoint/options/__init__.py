"""Every option, once: what it is called, what it means, its unit and its bounds.

`CompileOptions` holds those of a compile; every pass declares its own as dataclass fields with the same `option`
helper, so that checking, the text form, environment variables and help are written once.
"""

from counterpoint.options.compile_options import CompileOptions
from counterpoint.options.effective import EffectiveOptions, Setting, effective, unknown_variables
from counterpoint.options.fields import OptionInfo, checked, described, from_mapping, near_names, option
from counterpoint.options.text import assignments_of, fields_from_text, fields_text

__all__ = [
    "CompileOptions",
    "EffectiveOptions",
    "OptionInfo",
    "Setting",
    "assignments_of",
    "checked",
    "described",
    "effective",
    "fields_from_text",
    "fields_text",
    "from_mapping",
    "near_names",
    "option",
    "unknown_variables",
]
