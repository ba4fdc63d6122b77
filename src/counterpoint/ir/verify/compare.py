"""Where two meanings part: the first terms that differ, from the outputs inwards, and what to call the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from fractions import Fraction
from typing import Any

from torch.fx import Graph

from counterpoint.ir.verify.finding import Finding, at
from counterpoint.ir.verify.flat import Flat, spelled_out
from counterpoint.ir.verify.meaning import Meaning, Observed, live_nodes
from counterpoint.ir.verify.sizes import UndecidedError, is_plain
from counterpoint.ir.verify.terms import CAST, COMMUNICATES, REDUCES, ROWS, SCALE, WRAPPERS, Operand, Term

Verdict = tuple[str, int, str]
"""Code, the differing term of the new graph, message."""


def check_meaning(graph: Graph, before: Meaning, now: Meaning) -> Iterator[Finding]:
    """Every observed value is what it was, and nothing is sent twice."""
    yield from _compare_observed(before, now)
    yield from _compare_traffic(graph, before, now)


def _compare_observed(before: Meaning, now: Meaning) -> Iterator[Finding]:
    compare = _Comparison(now)
    told: dict[Verdict, list[Observed]] = {}
    olds = _by_name(before.observed)
    for what, seen in _by_name(now.observed).items():
        old = olds.pop(what, None)
        if old is None:
            yield Finding("unproven", seen.node, f"{what} was not there before")
        elif old.value != seen.value:
            told.setdefault(compare.values(old.value, seen.value), []).append(seen)
    for what, old in olds.items():
        # A missing output is a matter of the signature.
        if not what.startswith("output "):
            yield Finding("value-changed", _last_node(now), f"{what} (node {old.node}) is not there any more")
    for (code, term, message), places in told.items():
        affected = ", ".join(place.what for place in places[:8]) + (", ..." if len(places) > 8 else "")
        name = now.terms.origin[term] if term >= 0 else places[0].node
        yield Finding(code, name, f"{message}; affects {affected}")


def _by_name(observed: tuple[Observed, ...]) -> dict[str, Observed]:
    """Observations under distinct names: the second of a name becomes `name (2)`."""
    seen: Counter[str] = Counter()
    named: dict[str, Observed] = {}
    for one in observed:
        seen[one.what] += 1
        named[one.what if seen[one.what] == 1 else f"{one.what} ({seen[one.what]})"] = one
    return named


def _last_node(meaning: Meaning) -> str:
    return meaning.observed[-1].node if meaning.observed else "output"


def _compare_traffic(graph: Graph, before: Meaning, now: Meaning) -> Iterator[Finding]:
    live = live_nodes(graph)
    for term, share in now.traffic.items():
        allowed = before.traffic.get(term, 0)
        carriers = now.carriers[term]
        if allowed == 0:
            if not any(node in live for node in carriers):
                yield at("collective-added", carriers[-1], "the original has no such collective and nothing needs it")
        elif isinstance(share, (int, Fraction)) and isinstance(allowed, (int, Fraction)) and share > allowed:
            names = ", ".join(node.name for node in carriers)
            yield at("collective-duplicated", carriers[-1], f"sent {share} times, {allowed} times before, by {names}")


class _Comparison:
    """Walks two terms inwards side by side."""

    def __init__(self, meaning: Meaning) -> None:
        self.terms = meaning.terms
        self._known: dict[tuple[int, int], Verdict] = {}

    def values(self, old: Any, new: Any) -> Verdict:
        """Why two observed values differ."""
        pair = self._differing(old, new)
        if isinstance(pair, str):
            return (pair, -1, "the parts of this value are in other places" if pair == "value-moved" else "it differs")
        return self._terms(*pair)

    def _differing(self, old: Any, new: Any) -> tuple[int, int] | str:
        """The first two terms that stand in each other's place."""
        if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new) and not isinstance(old, Operand):
            return next((self._differing(a, b) for a, b in zip(old, new, strict=True) if a != b), "unproven")
        if isinstance(old, int) and isinstance(new, int):
            return old, new
        if not isinstance(old, Flat) or not isinstance(new, Flat):
            return "value-changed"
        for a, b in zip(old.cells, new.cells, strict=False):
            if a.term != b.term:
                here = {cell.term for cell in old.cells}
                # A member that belongs elsewhere in the same value is in the wrong place; otherwise look inside.
                return "value-moved" if here == {cell.term for cell in new.cells} else (a.term, b.term)
        return "value-moved" if _places_differ(old, new) else "unproven"

    def _terms(self, old: int, new: int) -> Verdict:
        path: list[tuple[int, int]] = []
        verdict: Verdict | tuple[int, int] = (old, new)
        while len(verdict) == 2:
            known = self._known.get(verdict)
            if known is not None:
                verdict = known
                break
            path.append(verdict)
            verdict = self._step(*verdict)
        result: Verdict = verdict
        self._known.update(dict.fromkeys(path, result))
        return result

    def _step(self, old: int, new: int) -> Verdict | tuple[int, int]:
        """The verdict on two terms, or the two operands in which they differ."""
        (old_chain, old_core), (new_chain, new_core) = self._chain(old), self._chain(new)
        if old_core == new_core:
            return self._name(old_chain, new_chain, new)
        a, b = self.terms.all[old_core], self.terms.all[new_core]
        if _links(old_chain) != _links(new_chain):
            verdict = self._name(old_chain, new_chain, new)
            # With another operator inside, the communication may have become part of it.
            return verdict if a.kind == b.kind and a.attributes[:1] == b.attributes[:1] else ("unproven", *verdict[1:])
        if a[:2] == b[:2] and len(a.operands) == len(b.operands):
            return self._operands(a, b, new_core)
        if ROWS in (a.kind, b.kind):
            return self._rows(a, b, old_core, new_core)
        if a.kind == b.kind == "input":
            return "value-changed", new_core, f"computed from {_input(b)} and was from {_input(a)}"
        return "unproven", new_core, f"computed by {_call(b)} and was by {_call(a)}, which cannot be compared here"

    def _rows(self, a: Term, b: Term, old: int, new: int) -> Verdict | tuple[int, int]:
        """The first row that differs, where one of the two is the same in every row or both have rows."""
        if a.kind == b.kind and len(a.operands) != len(b.operands):
            return "unproven", new, "it is cut into another number of blocks"
        lefts: tuple[Any, ...] = a.operands if a.kind == ROWS else (old,) * len(b.operands)
        rights: tuple[Any, ...] = b.operands if b.kind == ROWS else (new,) * len(a.operands)
        differing = next((pair for pair in zip(lefts, rights, strict=True) if pair[0] != pair[1]), None)
        return differing or ("value-moved", new, "the parts of this value are in other places")

    def _operands(self, a: Term, b: Term, new: int) -> Verdict | tuple[int, int]:
        for left, right in zip(a.operands, b.operands, strict=True):
            if left == right:
                continue
            if isinstance(left, Operand) and isinstance(right, Operand):
                if a.kind == "pack" and left.value.numel != right.value.numel:
                    # Two packs of different members have no places in common.
                    return "unproven", new, "it is packed with other values than before"
                if left.value == right.value:
                    certain = all(isinstance(size, int) for size in (*left.shape, *right.shape))
                    code = "value-changed" if certain else "unproven"
                    return code, new, f"{_call(b)} reads an operand of shape {right.shape}, was {left.shape}"
                pair = self._differing(left.value, right.value)
            else:
                pair = self._differing(left, right)
            return (pair, new, f"in an operand of {_call(b)}") if isinstance(pair, str) else pair
        return "unproven", new, f"{_call(b)} differs"

    def _chain(self, of: int) -> tuple[list[tuple[str, tuple[Hashable, ...]]], int]:
        """Communication, factors and casts from the outside inwards, and the term within them."""
        chain: list[tuple[str, tuple[Hashable, ...]]] = []
        while True:
            kind, attributes, operands = self.terms.all[of]
            if kind not in WRAPPERS | COMMUNICATES or len(operands) != 1 or not isinstance(operands[0], int):
                return chain, of
            chain.append((kind, attributes))
            of = operands[0]

    def _name(self, old: list[Any], new: list[Any], term: int) -> Verdict:
        """What to call the difference of two chains around one core."""
        before, after = _communication(old), _communication(new)
        text = f"now {_spell(new)}, was {_spell(old)}"
        if len(after) > len(before):
            extra = list((Counter(after) - Counter(before)).elements())
            reduces = any(kind in REDUCES for kind, _ in extra)
            return ("reduced-twice" if reduces and before else "collective-added"), term, text
        if len(after) < len(before):
            lost = list((Counter(before) - Counter(after)).elements())
            return ("not-reduced" if any(kind in REDUCES for kind, _ in lost) else "collective-dropped"), term, text
        for (kind, details), (new_kind, new_details) in zip(before, after, strict=True):
            if kind != new_kind:
                return "collective-changed", term, text
            if details[:1] != new_details[:1]:
                return "group-changed", term, text
            if details != new_details:
                return ("reduce-op-changed" if kind in REDUCES else "collective-changed"), term, text
        if [link for link in old if link[0] == CAST] != [link for link in new if link[0] == CAST] or _places(
            old
        ) != _places(new):
            return "dtype-changed", term, text
        return ("divisor-changed" if _factors(old) != _factors(new) else "unproven"), term, text


def _places_differ(old: Flat, new: Flat) -> bool:
    """Whether two values that are made of the same terms are certainly different arrangements of them."""
    try:
        lines = [spelled_out(value).cells for value in (old, new)]
    except UndecidedError:
        return False
    return lines[0] != lines[1] and all(is_plain(size) for line in lines for c in line for size in (c.start, c.length))


def _links(chain: list[Any]) -> list[Any]:
    return [link for link in chain if link[0] != "bits"]


def _communication(chain: list[Any]) -> list[Any]:
    return [link for link in chain if link[0] in COMMUNICATES]


def _places(chain: list[Any]) -> list[str]:
    return [kind for kind, _ in chain if kind != SCALE]


def _factors(chain: list[Any]) -> list[Any]:
    return [link for link in chain if link[0] == SCALE]


def _spell(chain: list[Any]) -> str:
    parts = [f"{kind}({', '.join(map(str, details))})" for kind, details in chain]
    return " of ".join(parts) or "the value itself"


def _input(term: Term) -> str:
    return f"input {term.attributes[1]}"


def _call(term: Term) -> str:
    return str(term.attributes[0]) if term.kind == "call" else term.kind
