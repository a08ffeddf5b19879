"""Identity is a hash of the question in canonical form: same question, same id, whatever the key order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from uuid import UUID


def canonical(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN; ints and floats stay apart (1 is not 1.0)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def hash_id(value: Mapping[str, object]) -> UUID:
    """blake2b over canonical JSON, cut to the 128 bits of a UUID."""
    return UUID(bytes=hashlib.blake2b(canonical(value).encode(), digest_size=16).digest())
