"""Where in the user's program something happened."""

from __future__ import annotations

import os
import traceback

import torch

_NOT_THE_USERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def user_line(error: BaseException) -> str | None:
    """The innermost line of an error's traceback that is neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else None
