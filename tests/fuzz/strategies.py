"""Inputs of a target, as hypothesis makes them up from its words and its corpus."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from .target import Target, text

_MOST_PIECES, _MOST_TIMES = 30, 600


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    return _json(target) if target.is_json else _pieces(target)


def _pieces(target: Target) -> st.SearchStrategy[bytes]:
    seeds = [path.read_bytes() for path in target.seeds()]
    word = st.sampled_from(target.words())
    many = st.tuples(word, st.integers(2, _MOST_TIMES)).map(lambda found: (found[0] * found[1])[:5000])
    piece = st.one_of(word, word, word, st.binary(max_size=6), st.text(max_size=4).map(_encoded), many)
    begun = st.tuples(st.sampled_from(seeds), st.integers(0, 200)).map(lambda found: found[0][: found[1]])
    joined = st.lists(piece, max_size=_MOST_PIECES).map(b"".join)
    return st.one_of(joined, st.tuples(begun, joined).map(b"".join), st.sampled_from(seeds))


def _json(target: Target) -> st.SearchStrategy[bytes]:
    word = st.sampled_from([text(word) for word in target.words()])
    string = st.one_of(word, word, st.text(st.characters(), max_size=5), st.just("\ud800"))
    leaf = st.one_of(string, st.none(), st.booleans(), st.integers(), st.floats(), st.integers(2**60, 2**70))
    value = st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(string, inner), max_leaves=12)
    seeds = st.sampled_from([path.read_bytes() for path in target.seeds()])
    return st.one_of(value.map(_dumped), st.dictionaries(word, value).map(_dumped), seeds)


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _encoded(said: str) -> bytes:
    return said.encode("utf-8", "surrogatepass")
