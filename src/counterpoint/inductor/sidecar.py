"""Reports kept beside the entries of the FX graph cache, so that a cache hit can still account for its collectives.

One small JSON file per compiled artefact. A file that is missing, damaged, of another format or of other code of ours
is as good as none: the caller then computes the report again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from torch._inductor.runtime.cache_dir_utils import cache_dir

LOGGER = logging.getLogger("counterpoint.cache")
FORMAT = 1


def sidecar_path(key: str, source_code: str) -> Path:
    """Where the report of an artefact lies.

    One cache key may have several artefacts that differ in their guards, hence the generated code in the name.
    """
    code = hashlib.sha256(source_code.encode()).hexdigest()[:16]
    return Path(cache_dir()) / "counterpoint" / "reports" / key[1:3] / f"{key}.{code}.json"


def store(path: Path, identity: str, content: Any) -> None:
    """Write the file at once or not at all: other ranks and processes read it meanwhile."""
    body = json.dumps(content, sort_keys=True)
    whole = {"format": FORMAT, "identity": identity, "sha256": _digest(body), "body": body}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(whole, file)
        os.replace(temporary, path)
    except OSError as error:
        LOGGER.warning("could not keep the report of a compiled graph in %s: %s", path, error)


def load(path: Path, identity: str) -> Any | None:
    """What was stored for this artefact by this version of our code; None when there is nothing to trust."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        if (whole["format"], whole["identity"]) != (FORMAT, identity):
            return None
        body = whole["body"]
        if _digest(body) != whole["sha256"]:
            raise ValueError("its checksum is wrong")
        return json.loads(body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        LOGGER.warning("the kept report %s is damaged (%s); it is computed again", path, error)
        return None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
