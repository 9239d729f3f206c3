"""Index expressions: integer polynomials over axes, size symbols, floor-divisions, remainders and read values.

An `Index` is a canonical sum of terms, so two that are equal by the rules here are the same object. Ranges come
from the atoms: an axis runs from 0 to size - 1, a size symbol is at least `low`. What cannot be proved is not
simplified; nothing here ever guesses or adds a guard. The algebra knows neither torch nor sympy.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import gcd
from typing import Any, Union
from weakref import WeakValueDictionary

Term = tuple[int, tuple["Atom", ...]]


class Atom:
    """A non-constant factor. Equal atoms compare equal; `key` orders them."""

    __slots__ = ("__weakref__", "form", "hash", "key", "text")
    key: tuple[Any, ...]
    hash: int
    text: tuple[str, str] | None
    form: "Index | None"  # the atom as an index, once asked for

    def __init__(self, *key: Any) -> None:
        self.key = key
        self.hash = hash(key)
        self.text = None
        self.form = None

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Atom) and self.hash == other.hash and type(self) is type(other) and self.key == other.key
        )

    @property
    def sort_key(self) -> tuple[str, str]:
        if self.text is None:
            self.text = (type(self).__name__, repr(self))
        return self.text


class Axis(Atom):
    """A loop variable from 0 to size - 1."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: "Index") -> None:
        super().__init__("axis", name, size)
        self.name = name
        self.size = size

    def __repr__(self) -> str:
        return self.name


class Sym(Atom):
    """A size known only at run time, at least `low`."""

    __slots__ = ("low", "name")

    def __init__(self, name: str, low: int = 2) -> None:
        super().__init__("sym", name, low)
        self.name = name
        self.low = low

    def __repr__(self) -> str:
        return self.name


class Div(Atom):
    """floor(num / den), den > 0."""

    __slots__ = ("den", "num")

    def __init__(self, num: "Index", den: "Index") -> None:
        super().__init__("div", num, den)
        self.num, self.den = num, den

    def __repr__(self) -> str:
        return f"({self.num} // {self.den})"


class Mod(Atom):
    """num - den * floor(num / den), den > 0."""

    __slots__ = ("den", "num")

    def __init__(self, num: "Index", den: "Index") -> None:
        super().__init__("mod", num, den)
        self.num, self.den = num, den

    def __repr__(self) -> str:
        return f"({self.num} % {self.den})"


class Read(Atom):
    """An integer value read from memory, known to lie in 0 .. size - 1 (the row that makes it sees to that)."""

    __slots__ = ("size", "value")

    def __init__(self, value: Any, size: "Index") -> None:
        super().__init__("read", value, size)
        self.value, self.size = value, size

    def __repr__(self) -> str:
        return f"[{self.value}]"


IndexLike = Union["Index", Atom, int]


class Index:
    """A sum of integer multiples of products of atoms. Immutable and interned: equality is identity."""

    __slots__ = ("__weakref__", "axes", "has_reads", "hash", "terms")
    terms: tuple[Term, ...]
    axes: frozenset[Axis]
    has_reads: bool  # whether a value read from memory is in it
    hash: int

    def __hash__(self) -> int:
        return self.hash

    # Interned, so object identity is equality.

    def __add__(self, other: IndexLike) -> "Index":
        return _sum(self, as_index(other))

    __radd__ = __add__

    def __neg__(self) -> "Index":
        return self * -1

    def __sub__(self, other: IndexLike) -> "Index":
        return self + -as_index(other)

    def __rsub__(self, other: IndexLike) -> "Index":
        return as_index(other) - self

    def __mul__(self, other: IndexLike) -> "Index":
        return _product(self, as_index(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: IndexLike) -> "Index":
        return _divide(self, as_index(other))

    def __mod__(self, other: IndexLike) -> "Index":
        return _remainder(self, as_index(other))

    def __repr__(self) -> str:
        return _show(self)

    @property
    def const(self) -> int | None:
        """The value, when it is a plain number."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][1]:
            return self.terms[0][0]
        return None

    @property
    def atoms(self) -> Iterator[Atom]:
        """Every atom, nested ones too."""
        for _, factors in self.terms:
            for atom in factors:
                yield atom
                if isinstance(atom, Div | Mod):
                    yield from atom.num.atoms
                    yield from atom.den.atoms

    @property
    def reads(self) -> Iterator[Any]:
        """The values read from memory that this index depends on."""
        return (atom.value for atom in self.atoms if isinstance(atom, Read)) if self.has_reads else iter(())

    def coefficient(self, axis: Axis) -> "Index | None":
        """Factor of `axis` where the index is linear in it; None where it is not."""
        out: list[Term] = []
        for coefficient, factors in self.terms:
            count = factors.count(axis)
            if count > 1 or any(axis in _atom_axes(f) for f in factors if f != axis):
                return None
            if count:
                rest = list(factors)
                rest.remove(axis)
                out.append((coefficient, tuple(rest)))
        return _intern(out)


_table: "WeakValueDictionary[tuple[Term, ...], Index]" = WeakValueDictionary()


def _order(term: Term) -> tuple[int, list[tuple[str, str]]]:
    return (-len(term[1]), [a.sort_key for a in term[1]])


def _intern(terms: Iterable[Term]) -> Index:
    kept = [t for t in terms if t[0]]
    if len(kept) > 1:
        kept.sort(key=_order)
    key = tuple(kept)
    found = _table.get(key)
    if found is None:
        found = Index()
        found.terms = key
        found.hash = hash(key)
        axes: frozenset[Axis] = frozenset()
        found.has_reads = False
        for _, factors in key:
            for atom in factors:
                own = _atom_axes(atom)
                axes = axes | own if axes else own
                found.has_reads |= isinstance(atom, Read) or (
                    isinstance(atom, Div | Mod) and (atom.num.has_reads or atom.den.has_reads)
                )
        found.axes = axes
        _table[key] = found
    return found


def _atom_axes(atom: Atom) -> frozenset[Axis]:
    match atom:
        case Axis():
            return frozenset((atom,))
        case Div() | Mod():
            return atom.num.axes | atom.den.axes
        case Read():
            free: frozenset[Axis] = atom.value.axes
            return free
    return frozenset()


def as_index(value: IndexLike) -> Index:
    """An int, atom or index as an index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, Atom):
        if value.form is None:
            value.form = _intern([(1, (value,))])
        return value.form
    return _number(int(value))


@cache
def _number(value: int) -> Index:
    return _intern([(value, ())])


ZERO = as_index(0)
ONE = as_index(1)


def _collect(terms: Iterable[Term]) -> dict[tuple[Atom, ...], int]:
    out: dict[tuple[Atom, ...], int] = {}
    for coefficient, factors in terms:
        out[factors] = out.get(factors, 0) + coefficient
    return out


def _sum(a: Index, b: Index) -> Index:
    if not a.terms:
        return b
    if not b.terms:
        return a
    merged = _collect((*a.terms, *b.terms))
    _rejoin(merged)
    _remains(merged)
    return _intern((c, f) for f, c in merged.items())


def _rejoin(terms: dict[tuple[Atom, ...], int]) -> None:
    """c*d*(x // d) + c*(x % d)  ->  c*x, in place."""
    for factors in [f for f in terms if any(isinstance(a, Mod) for a in f)]:
        c = terms.get(factors, 0)
        for atom in factors:
            if not isinstance(atom, Mod) or not c:
                continue
            rest = list(factors)
            rest.remove(atom)
            whole = _intern([(c, tuple(rest))]) * atom.den * (atom.num // atom.den)
            if len(whole.terms) == 1 and terms.get(whole.terms[0][1]) == whole.terms[0][0]:
                del terms[factors]
                del terms[whole.terms[0][1]]
                for coefficient, f in (_intern([(c, tuple(rest))]) * atom.num).terms:
                    terms[f] = terms.get(f, 0) + coefficient
                _rejoin(terms)
                return


def _remains(terms: dict[tuple[Atom, ...], int]) -> None:
    """c*x - c*d*(x // d)  ->  c*(x % d), in place, for a number d."""
    for factors in [f for f in terms if any(isinstance(a, Div) for a in f)]:
        for atom in factors:
            step = atom.den.const if isinstance(atom, Div) else None
            coefficient = terms.get(factors, 0)
            if not isinstance(atom, Div) or not step or not coefficient or coefficient % step:
                continue
            rest = list(factors)
            rest.remove(atom)
            times = _intern([(-coefficient // step, tuple(rest))])
            whole = (times * atom.num).terms
            if all(terms.get(f) == c for c, f in whole):
                del terms[factors]
                for _, f in whole:
                    del terms[f]
                for c, f in (times * (atom.num % atom.den)).terms:
                    terms[f] = terms.get(f, 0) + c
                _remains(terms)
                return


def _product(a: Index, b: Index) -> Index:
    out: dict[tuple[Atom, ...], int] = {}
    for ca, fa in a.terms:
        for cb, fb in b.terms:
            factors = tuple(sorted((*fa, *fb), key=lambda x: x.sort_key)) if fa and fb else fa or fb
            out[factors] = out.get(factors, 0) + ca * cb
    return _intern((c, f) for f, c in out.items())


def _divide_term(term: Term, by: Term) -> Term | None:
    """term / by when it divides exactly."""
    if term[0] % by[0]:
        return None
    rest = list(term[1])
    for atom in by[1]:
        if atom not in rest:
            return None
        rest.remove(atom)
    return term[0] // by[0], tuple(rest)


def _split(num: Index, den: Index) -> tuple[Index, Index]:
    """num = quotient * den + rest, term by term, for a den of one term."""
    if len(den.terms) != 1:
        return (ONE, ZERO) if num is den else (ZERO, num)
    quotient: list[Term] = []
    rest: list[Term] = []
    for term in num.terms:
        exact = _divide_term(term, den.terms[0])
        if exact is not None:
            quotient.append(exact)
        elif not den.terms[0][1] and not term[1]:
            quotient.append((term[0] // den.terms[0][0], ()))
            rest.append((term[0] % den.terms[0][0], ()))
        else:
            rest.append(term)
    return _intern(quotient), _intern(rest)


def within(index: Index, size: IndexLike) -> bool:
    """Whether 0 <= index < size is proved."""
    return at_least(index, 0) and at_least(as_index(size) - upper(index), 1)


def _common(rest: Index, den: Index) -> tuple[int, Index, Index] | None:
    """(g, k, r) with rest = g*k + r, 0 <= r < g, g dividing a constant den and g > 1."""
    d = den.const
    if d is None:
        return None
    for g in sorted({gcd(c, d) for c, f in rest.terms if f} - {1}, reverse=True):
        many = _intern((c // g, f) for c, f in rest.terms if c % g == 0)
        few = _intern((c, f) for c, f in rest.terms if c % g)
        if many.terms and within(few, g):
            return g, many, few
    return None


def _divide(num: Index, den: Index) -> Index:
    if den is ONE or not num.terms:
        return num
    if num.const is not None and den.const is not None:
        return as_index(num.const // den.const)
    quotient, rest = _split(num, den)
    if within(rest, den):
        return quotient
    common = _common(rest, den)
    if common is not None and den.const is not None:
        g, many, _ = common
        return quotient + many // (den.const // g)
    if len(rest.terms) == 1 and rest.terms[0][0] == 1 and len(rest.terms[0][1]) == 1:
        inner = rest.terms[0][1][0]
        if isinstance(inner, Div):  # (x // a) // b  ->  x // (a*b)
            return quotient + inner.num // (inner.den * den)
    return quotient + as_index(Div(rest, den))


def _remainder(num: Index, den: Index) -> Index:
    if den is ONE or not num.terms:
        return ZERO
    if num.const is not None and den.const is not None:
        return as_index(num.const % den.const)
    _, rest = _split(num, den)
    if within(rest, den):
        return rest
    common = _common(rest, den)
    if common is not None and den.const is not None:
        g, many, few = common
        if g > 1 and g < den.const:
            return (many % (den.const // g)) * g + few
        if g == den.const:
            return few
    if len(rest.terms) == 1 and rest.terms[0][0] == 1 and len(rest.terms[0][1]) == 1:
        inner = rest.terms[0][1][0]
        if isinstance(inner, Mod) and not _split(inner.den, den)[1].terms:  # (x % ab) % b  ->  x % b
            return inner.num % den
    return as_index(Mod(rest, den))


def _atom_range(atom: Atom) -> tuple[Index, Index | None]:
    """Least and greatest value of an atom, as indices over size symbols only."""
    match atom:
        case Axis() | Read():
            return ZERO, upper(atom.size) - 1
        case Sym():
            return as_index(atom), as_index(atom)
        case Mod():
            return ZERO, upper(atom.den) - 1
        case Div():
            low, high = lower(atom.num), upper(atom.num)
            if atom.den.const is not None or not atom.den.axes:
                return low // atom.den, high // atom.den
            return ZERO, high
    return ZERO, None


@cache
def _bound(index: Index, greatest: bool) -> Index:
    out = ZERO
    for coefficient, factors in index.terms:
        value = as_index(coefficient)
        want_high = greatest == (coefficient > 0)
        for atom in factors:
            low, high = _atom_range(atom)
            value = value * (high if want_high and high is not None else low)
        out = out + value
    return out


def lower(index: Index) -> Index:
    """A lower bound over all axes, in size symbols."""
    return _bound(index, False) if index.axes or index.has_reads else index


def upper(index: Index) -> Index:
    """An upper bound over all axes, in size symbols."""
    return _bound(index, True) if index.axes or index.has_reads else index


def at_least(index: Index, least: int) -> bool:
    """Whether index >= least is proved, for every axis and every size symbol."""
    low = lower(index)
    if low.const is not None:
        return low.const >= least
    # Put each symbol at its least value plus something non-negative: s = low + t. If every coefficient
    # but the constant is then non-negative, the constant is the minimum.
    shifted: dict[tuple[Atom, ...], int] = {}
    for coefficient, factors in low.terms:
        parts: list[Term] = [(coefficient, ())]
        for atom in factors:
            if not isinstance(atom, Sym):
                return False
            parts = [*((c, (*f, atom)) for c, f in parts), *((c * atom.low, f) for c, f in parts)]
        for c, f in parts:
            f = tuple(sorted(f, key=lambda a: a.sort_key))
            shifted[f] = shifted.get(f, 0) + c
    constant = shifted.pop((), 0)
    return constant >= least and all(c >= 0 for c in shifted.values())


def flatten(indices: Iterable[IndexLike], sizes: Iterable[IndexLike]) -> Index:
    """Row-major position: ((i0 * n1 + i1) * n2 + i2) ..."""
    out = ZERO
    for index, size in zip(indices, sizes, strict=True):
        out = out * size + index
    return out


def unflatten(flat: IndexLike, sizes: Iterable[IndexLike]) -> tuple[Index, ...]:
    """The inverse of `flatten`: position -> one index per dimension."""
    out: list[Index] = []
    rest = as_index(flat)
    dims = [as_index(s) for s in sizes]
    for k in range(len(dims) - 1, 0, -1):
        out.append(rest % dims[k])
        rest = rest // dims[k]
    return (*([rest] if dims else []), *reversed(out))


def evaluate(index: Index, at: Mapping[Atom, int]) -> int:
    """The number for given axes and symbols (values read from memory included as atoms)."""
    total = 0
    for coefficient, factors in index.terms:
        term = coefficient
        for atom in factors:
            if atom in at:
                term *= at[atom]
            elif isinstance(atom, Div):
                term *= evaluate(atom.num, at) // evaluate(atom.den, at)
            elif isinstance(atom, Mod):
                term *= evaluate(atom.num, at) % evaluate(atom.den, at)
            else:
                raise KeyError(repr(atom))
        total += term
    return total


def _show(index: Index) -> str:
    if not index.terms:
        return "0"
    parts: list[str] = []
    for coefficient, factors in index.terms:
        body = "*".join(map(repr, factors))
        text = body if coefficient == 1 and body else f"{abs(coefficient)}*{body}" if body else str(abs(coefficient))
        if coefficient == -1 and body:
            text = body
        parts.append(("- " if coefficient < 0 else "+ ") + text)
    first = parts[0]
    return " ".join([first[2:] if first[0] == "+" else "-" + first[2:], *parts[1:]])
