"""Cases of floats: arithmetic to the bit by exact fractions, the approximate units within their errors.

Of the approximate units the ISA's tables of special values hold to the bit. Their references are `math` in float64,
which is nearer to the exact value than any of the bounds by a factor of 2^20. Pairs are computed half by half.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
import math

import numpy as np
from tests.cases import reference_float as reference
from tests.cases.harness import Case, edge, given, named, pairs, plain, sample, triples
from tests.cases.reference_convert import arithmetic, compare
from tests.cases.reference_float import flush
from tests.cases.reference_int import column

from ptxemu.table import ROWS, Row
from ptxemu.values import DTYPES, Array

# Unit of the last place of 1, smallest normal number, scales from the least normal to the largest.
SCALES = {
    "f32": (2.0**-23, 2.0**-126, [1.0, 2.0**-125, 2.0**-140, 2.0**127, 3.0, 2.0**-100]),
    "f64": (2.0**-52, 2.0**-1022, [1.0, 2.0**-1021, 2.0**-1040, 2.0**1023, 3.0, 2.0**-960]),
}
SIGNS = (1, -1)


def three_ties(kind: str) -> list[tuple[float, ...]]:
    """Sums beside a tie, by so little that the sum of the rounded product (or of a float64 one) is the tie itself."""
    ulp, normal, scales = SCALES[kind]
    root = 2.0**-12 if kind == "f32" else 2.0**-26
    products = [(1 + ulp, 1 - ulp), (1 + root, 1 - root + root * root), (1.0, 1.0)]  # below 1, above 1, 1
    found: list[tuple[float, ...]] = []
    for scale, significand, (x, y) in product(scales, (1.0, 1 + ulp, 1 + 2.0**-9, 1.5, 2 - ulp), products):
        half = max(scale * ulp, ulp * normal) / 2  # half a unit of the last place of the term
        up = 2.0**60 if scale < 1 else 1.0  # both factors normal
        found += [(sign * x / up, y * half * up, significand * scale) for sign in SIGNS]
    found += [(x, y, 0.0) for x, y in nearly_normal(kind)] + [(-x, y, -0.0) for x, y in nearly_normal(kind)]
    tiny = [normal * ulp / 2**k * e for k in (1, 2, 23) for e in (1.0, 1.25, 1.5)]  # sums just below the least normal
    found += [(sign * 2.0**-40, x * 2.0**40, -sign * normal) for x in tiny for sign in SIGNS]
    found = [item for item in found if all(abs(x) < math.inf for x in item)]
    return [*found, (scales[3], 2.0, -math.inf), (scales[3], -2.0, math.inf)]  # the product alone would overflow


def nearly_normal(kind: str) -> list[tuple[float, float]]:
    """Factors with a product below the smallest normal number by less than a unit of the last place."""
    ulp, normal, _ = SCALES[kind]
    down, up = 2.0**-60, normal * 2.0**60
    steps = (1, 1500, 2900) if kind == "f32" else (1, 40000000, 60000000)
    found = [((1 + i * ulp) * down, (1 - i * ulp) * up) for i in steps] + [(down, (1 - ulp / 2) * up)]
    return found + [(-x, y) for x, y in found]


def two_ties(kind: str) -> list[tuple[float, float]]:
    """Sums, products and quotients at or beside ties, at the threshold of overflow and of the subnormal numbers."""
    ulp, normal, scales = SCALES[kind]
    large, significands = scales[3], (1.0, 1 + ulp, 1.5, 2 - ulp)
    largest, least, root = (2 - ulp) * large, normal * ulp, math.sqrt(normal)
    grid = product(scales[:1] + scales[4:], significands, SIGNS, (0, 1, -1))
    return [
        *((x * scale, sign * scale * ulp / 2 * (1 + e * ulp)) for scale, x, sign, e in grid),
        (largest, large * ulp / 2), (largest, large * ulp / 4), (-largest, -large * ulp / 2), (largest, largest),
        (largest, -least), (1.0, least), (1.0, -least), (normal, -least), (1 + ulp, 1 + ulp * 2**11), (1 + ulp, 1.5),
        (1 + ulp, (1 - ulp) * normal), (normal, 0.5), (normal, -0.5), (normal * (1 + ulp), 0.5),
        (normal * (1 + 3 * ulp), 0.5), (least, 0.5), (least, 0.75), (root, root * ulp), (least, least),
        (normal, largest), *nearly_normal(kind),
        *((sign * (2 - i * ulp) * normal * 64, (2 - ulp) * 64) for i in (2, 3, 4) for sign in SIGNS),
        *((x, -x) for x in (1.0, largest, normal, least)),
    ]  # fmt: skip


@cache
def operands(kind: str, count: int) -> tuple[Array, ...]:
    if count > 1:
        columns = pairs(kind, limit=200) if count == 2 else triples(kind, limit=240)
        extra = np.array(two_ties(kind) if count == 2 else three_ties(kind)).astype(DTYPES[kind])
        return tuple(np.concatenate([column, extra[:, i]]) for i, column in enumerate(columns))
    ulp, normal, _ = SCALES[kind]
    numbers = (1 + ulp, 1 - ulp / 2, 2 - ulp, (1 + 2.0**-11) ** 2, (1 + 2.0**-10) ** 2, 9.0, 2.25, 2 / 3, 3.0)
    near = [sign * x * scale for x, sign, scale in product(numbers, SIGNS, (1.0, normal, normal * 4, 1 / normal))]
    with np.errstate(over="ignore"):
        return (np.concatenate([edge(kind, 160), np.array(near).astype(DTYPES[kind])]),)


def rounded() -> Iterator[Case]:
    for name, kind, mode in product(reference.OPERATIONS, ("f32", "f64"), ("rn", "rz", "rm", "rp")):
        arrays = operands(kind, 3 if name in {"fma", "mad"} else 1 if name in {"rcp", "sqrt"} else 2)
        flags = product((False, True), (False, True) if name in {"add", "sub", "mul", "fma", "mad"} else (False,))
        for ftz, clamp in flags if kind == "f32" else [(False, False)]:
            expected = reference.compute(name, kind, mode, arrays, ftz=ftz, sat=clamp)
            tail = f"{'.ftz' * ftz}{'.sat' * clamp}.{kind}"
            yield plain(f"{name}.{mode}{tail}", named(kind, *arrays), kind, expected)
            if mode == "rn" and name in {"add", "sub", "mul"}:
                yield plain(f"{name}{tail}", named(kind, *arrays), kind, expected)


def mapped(function: Callable[..., float], arrays: tuple[Array, ...]) -> Array:
    lanes = zip(*(array.tolist() for array in arrays), strict=True)
    return np.array([function(*lane) for lane in lanes]).astype(arrays[0].dtype)


def extremes() -> Iterator[Case]:
    for name in ("min", "max"):
        for ftz, nan, xorsign in product((False, True), repeat=3):
            rule = partial(reference.extreme, name, nan=nan, ftz=ftz, xorsign=xorsign)
            opcode = f"{name}{'.ftz' * ftz}{'.NaN' * nan}{'.xorsign.abs' * xorsign}.f32"
            arrays, target = operands("f32", 2), "sm_86" if xorsign else "sm_80"
            yield plain(opcode, named("f32", *arrays), "f32", mapped(rule, arrays), target=target)
        arrays, rule = operands("f64", 2), partial(reference.extreme, name, nan=False, ftz=False)
        yield plain(f"{name}.f64", named("f64", *arrays), "f64", mapped(rule, arrays))


def signs() -> Iterator[Case]:
    for kind in ("f32", "f64"):
        (a,), (x, y), least = operands(kind, 1), operands(kind, 2), SCALES[kind][1]
        yield plain(f"neg.{kind}", named(kind, a), kind, -a)
        yield plain(f"abs.{kind}", named(kind, a), kind, np.abs(a))
        yield plain(f"copysign.{kind}", named(kind, x, y), kind, np.copysign(y, x))
        size = np.abs(a)
        tests = {
            "finite": np.isfinite(a), "infinite": np.isinf(a), "number": ~np.isnan(a), "notanumber": np.isnan(a),
            "normal": (a == 0) | (size >= least) & (size < np.inf), "subnormal": (size > 0) & (size < least),
        }  # fmt: skip
        for name, expected in tests.items():
            yield plain(f"testp.{name}.{kind}", named(kind, a), "pred", expected)
    (a,) = operands("f32", 1)
    flushed = mapped(reference.flush, (a,))
    yield plain("neg.ftz.f32", named("f32", a), "f32", -flushed)
    yield plain("abs.ftz.f32", named("f32", a), "f32", np.abs(flushed))


COUNT = 192
# Factors of f16 products just below 2^-14, to which subnormal numbers would round all of them; `.ftz` rounds otherwise.
TIE, BELOW_TIE = (63 * 2.0**-6, 65 * 2.0**-20), (2047 * 2.0**-12, 2.0**-13)
BELOW_NORMAL = np.array([TIE, BELOW_TIE, BELOW_TIE[::-1]] * 4)
HOPPER = {"add", "sub", "mul", "setp", "set", "ex2", "tanh"}  # with bf16 these need sm_90
TRUE = {"f16": 0x3C00, "bf16": 0x3F80, "u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}


@cache
def inputs(kind: str, count: int) -> tuple[Array, ...]:
    """Edge values of a 16-bit type in all combinations; for three sources also sums that are ties but for a bit."""
    dtype, step, half = DTYPES[kind], 2.0**-10 if kind == "f16" else 2.0**-7, 5 if kind == "f16" else 4
    below = BELOW_NORMAL.T.astype(dtype)
    if count == 1:
        return (edge(kind, COUNT),)
    if count == 2:
        return tuple(map(np.concatenate, zip(pairs(kind, limit=COUNT - len(BELOW_NORMAL)), below, strict=True)))
    a, b, c = triples(kind, limit=3 * COUNT - 32)
    tie = np.array([1 + step, 1 + 2.0**-half, 3.0, 255.0], dtype)  # times `factor`: half-way between two numbers
    factor = np.array([1.5, 1 + step * 2.0 ** (half - 1), 1 + step, 257 / 256], np.float32).astype(dtype)
    tiny = (2.0**-24, -(2.0**-24), 0.0, 2.0**-10) if kind == "f16" else (2.0**-133, -(2.0**-133), 0.0, -(2.0**-100))
    term = np.repeat(np.array(tiny * 2, dtype), 4)
    last = slice(-len(BELOW_NORMAL), None)
    a[last], b[last], c[last] = *below, 0
    return tuple(np.concatenate(both) for both in ((a, np.tile(tie, 8)), (b, np.tile(factor, 8)), (c, term)))


def number(name: str, words: list[str], kind: str, numbers: list[float]) -> float:
    """One result of an instruction whose result has the type of its sources."""
    if name in {"add", "sub", "mul", "fma", "min", "max"}:
        return arithmetic(name, kind, words, *numbers)
    x = flush(numbers[0], kind) if "ftz" in words else numbers[0]
    if name in {"neg", "abs"}:
        return -x if name == "neg" else abs(x)
    if math.isnan(x):
        return x
    if name == "tanh":
        return math.tanh(x)
    power = 2.0**x if x < 1024 else math.inf
    return flush(power) if "ftz" in words else power


def computed(row: Row) -> Case:
    """Arithmetic, signs, extremes and approximations; pairs get the scalar inputs in both halves, shifted."""
    name, *words, typed = row.form.split(".")
    kind, approximate = typed.removesuffix("x2"), "approx" in words
    names = inputs(kind, len(row.sources))
    lists = zip(*(array.astype(np.float64).tolist() for array in names), strict=True)
    with np.errstate(all="ignore"):
        exact = [number(name, words, kind, list(numbers)) for numbers in lists]
        wanted = np.array(exact).astype(np.float32).astype(DTYPES[kind]) if approximate else column(exact, kind)
    if typed != kind:
        names, wanted = tuple(map(doubled, names)), doubled(wanted)
    tolerance, absolute, note = errors(name, kind) if approximate else (0.0, 0.0, "")
    target = "sm_90" if kind == "bf16" and name in HOPPER else "sm_86" if "xorsign" in words else "sm_80"
    loose = {"tolerance": tolerance, "absolute": absolute, "note": note}
    return plain(row.form, named(typed, *names), typed, wanted, target=target, **loose)


def errors(name: str, kind: str) -> tuple[float, float, str]:
    """The ISA's stated errors, plus one rounding of the expectation: relative, absolute, source."""
    unit = 2.0**-11 if kind == "f16" else 2.0**-8
    if name == "ex2":
        stated = 2.0**-9.9 if kind == "f16" else 2.0**-7
        return stated + unit, 2.0**-24 if kind == "f16" else 0.0, f"stated: {stated:.2e} relative"
    stated = 2.0**-10.987 if kind == "f16" else 2.0**-8
    return unit, stated + unit, f"stated: {stated:.2e} absolute"


def doubled(array: Array) -> Array:
    raw = array.view(np.uint16).astype(np.uint32)
    return (np.roll(raw, 5) << np.uint32(16)) | raw


def comparison(row: Row) -> Case:
    name, *words, typed = row.form.split(".")
    kind, pair = typed.removesuffix("x2"), typed.endswith("x2")
    a, b = inputs(kind, 2)
    flags = sample("pred", len(a), row.form)
    lists = ([flush(x, kind) if "ftz" in words else x for x in array.astype(np.float64).tolist()] for array in (a, b))
    holds = np.array([compare(words[0], x, y) for x, y in zip(*lists, strict=True)])
    joined = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    join = next((joined[word] for word in words if word in joined), lambda half, _: half)
    low, high = (join(half, flags) for half in (holds, np.roll(holds, 5)))
    operands = named(typed, *(map(doubled, (a, b)) if pair else (a, b)))
    if len(row.sources) == 3:
        operands["c"] = ("pred", flags)
    target = "sm_90" if kind == "bf16" else "sm_80"
    if name == "setp":
        results = {"p": ("pred", low), "q": ("pred", high)}
        return given(row.form, f"{row.form} p|q, {', '.join(operands)};", operands, results, target=target)
    result = row.results[0]
    if not pair:
        wanted = (low * np.uint32(TRUE[result])).astype(f"u{DTYPES[result].itemsize}")
    else:
        true = np.uint32(TRUE[kind] if result == typed else 0xFFFF)
        wanted = low * true | high * (true << np.uint32(16))
    return plain(row.form, operands, result, wanted.view(DTYPES[result]), target=target)


INF, NAN = math.inf, math.nan
LEAST, NORMAL, LARGEST = 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127
ULP = 2.0**-23  # the greatest relative size of a unit in the last place
SUBNORMAL = NORMAL - LEAST
Error = tuple[float, float, str]  # relative, absolute, the ISA's words
EXACT: Error = (0.0, 0.0, "special values")

# name -> operand, result, and result under .ftz where that differs: the ISA's tables, with subnormal operands added
SPECIAL: dict[str, list[tuple[float, ...]]] = {
    "ex2": [(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (NAN, NAN), (LEAST, 1.0), (-SUBNORMAL, 1.0),
            (1000.0, INF), (-1000.0, 0.0), (128.0, INF), (-130.5, 2.0**-130.5, 0.0)],
    "lg2": [(-INF, NAN), (-1.5, NAN), (-0.0, -INF), (0.0, -INF), (INF, INF), (NAN, NAN), (-LEAST, NAN, -INF),
            (LEAST, -149.0, -INF), (2.0**-127, -127.0, -INF), (1.0, 0.0)],
    "sin": [(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN)],
    "cos": [(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN), (NAN, NAN), (LEAST, 1.0), (-SUBNORMAL, 1.0)],
    "tanh": [(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (NAN, NAN), (100.0, 1.0), (-100.0, -1.0)],
    "rcp": [(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (LEAST, INF), (-LEAST, -INF),
            (2.0**-127, 2.0**127, INF), (-(2.0**-127), -(2.0**127), -INF), (2.0**127, 2.0**-127, 0.0),
            (-(2.0**127), -(2.0**-127), -0.0), (-LARGEST, -1 / LARGEST, -0.0)],
    "rsqrt": [(-INF, NAN), (-1.5, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (-LEAST, NAN, -INF),
              (LEAST, 2.0**74.5, INF), (2.0**-128, 2.0**64, INF)],
    "sqrt": [(-INF, NAN), (-1.5, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN), (-LEAST, NAN, -0.0),
             (LEAST, 2.0**-74.5, 0.0), (2.0**-128, 2.0**-64, 0.0)],
}  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[[float], float], Error]] = {
    "ex2": (lambda x: 2.0**x if -1000 < x < 1000 else (0.0 if x < 0 else INF), (2 * ULP, 2 * LEAST, "max 2 ulp")),
    "lg2": (math.log2, (2.0**-22, 0.0, "max relative error 2^-22 outside (0.5, 2)")),
    "sin": (math.sin, (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]")),
    "cos": (math.cos, (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]")),
    "tanh": (math.tanh, (2.0**-11, 0.0, "max relative error 2^-11")),
    "rcp": (lambda x: 1 / x, (ULP, LEAST, "max 1 ulp")),
    "rsqrt": (lambda x: 1 / math.sqrt(x), (2.0**-22.9, 0.0, "max relative error 2^-22.9")),
    "sqrt": (math.sqrt, (2.0**-23, 0.0, "max relative error 2^-23")),
}


def f32(values: Sequence[float] | Array) -> Array:
    with np.errstate(all="ignore"):
        return np.array(values).astype(np.float32)


def single(value: float) -> float:
    """The value as f32 arithmetic can hold it: overflow is infinite."""
    return value if abs(value) < 2.0**128 else math.copysign(INF, value)


def case(opcode: str, operands: Sequence[Array], expected: Array, error: Error = EXACT, kind: str = "f32") -> Case:
    loose = {"tolerance": error[0], "absolute": error[1], "note": error[2]}
    return plain(opcode, named(kind, *operands), kind, expected, **loose)


def finite(name: str) -> Array:
    """Finite operands on which the error bound of the function holds."""
    numbers = np.concatenate([edge("f32"), sample("f32", 256, name)])
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    if name in {"lg2", "rsqrt", "sqrt"}:
        numbers = np.abs(numbers)
    if name == "lg2":
        numbers = numbers[(numbers <= 0.5) | (numbers >= 2)]
    if name in {"sin", "cos"}:
        numbers = numbers[np.abs(numbers) <= 2 * np.pi]
    dense = {"sin": (-6.28, 6.28, 200), "cos": (-6.28, 6.28, 200), "ex2": (-151, 127.9, 300), "tanh": (-10, 10, 200)}
    return np.concatenate([numbers, np.linspace(*dense.get(name, (0, 0, 0)), dtype=np.float32)])


def unary() -> Iterator[Case]:
    for name, (function, (relative, absolute, words)) in FUNCTIONS.items():
        for ftz in (False, True) if name != "tanh" else (False,):
            opcode = f"{name}.approx{'.ftz' * ftz}.f32"
            table = [(row[0], row[-1 if ftz else 1]) for row in SPECIAL[name]]
            exact = [row for row in table if row[1] in {0.0, 1.0, -1.0} or not math.isfinite(row[1])]
            yield case(opcode, [f32([row[0] for row in exact])], f32([row[1] for row in exact]))
            near, numbers = [row[0] for row in table if row not in exact], finite(name)
            if ftz:  # a result beside the smallest normal number may be flushed or not
                absolute = max(absolute, NORMAL)  # noqa: PLW2901 - of this form
                numbers = numbers[np.abs(numbers) >= NORMAL]
            a = np.concatenate([f32(near), numbers])
            expected = np.array([single(function(x)) for x in a.tolist()])
            yield case(opcode, [a], expected, (relative, absolute, words))


def ranges() -> Iterator[Case]:
    """Logarithms near 1 and large angles, which have bounds of their own."""
    ones = f32(np.concatenate([np.linspace(0.5001, 1.9999, 300), 1 + np.arange(-20, 21) * 2.0**-22]))
    angles = f32(np.linspace(-314, 314, 500))
    wide = 2.0**-30, 2.0**-14.7, "max absolute error 2^-14.7 in [-100 pi, 100 pi]"
    near_one = 2.0**-40, 2.0**-22, "max absolute error 2^-22 in (0.5, 2)"
    for name, a, error in (("lg2", ones, near_one), ("sin", angles, wide), ("cos", angles, wide)):
        expected = np.array([FUNCTIONS[name][0](x) for x in a.tolist()])
        for ftz in ("", ".ftz"):
            yield case(f"{name}.approx{ftz}.f32", [a], expected, error)


# a, b, a / b by div.approx, under .ftz
QUOTIENTS: list[tuple[float, float, float, float]] = [
    (0.0, 0.0, NAN, NAN), (INF, INF, NAN, NAN), (NAN, 1.0, NAN, NAN), (1.0, NAN, NAN, NAN), (1.0, 0.0, INF, INF),
    (-1.0, 0.0, -INF, -INF), (1.0, -0.0, -INF, -INF), (INF, 2.0, INF, INF), (INF, -2.0, -INF, -INF),
    (1.0, INF, 0.0, 0.0), (-1.0, INF, -0.0, -0.0), (0.0, -3.0, -0.0, -0.0), (LARGEST, 2.0**-20, INF, INF),
    (1.0, 2.0**127, 0.0, 0.0), (-LARGEST, 2.0**127, -0.0, -0.0), (LARGEST, -LARGEST, -0.0, -0.0),
    (INF, 2.0**127, NAN, NAN), (-INF, LARGEST, NAN, NAN), (0.0, 2.0**127, 0.0, 0.0),
]  # fmt: skip
FLUSHED: list[tuple[float, ...]] = [
    (1.0, LEAST, INF), (-1.0, SUBNORMAL, -INF), (LEAST, LEAST, NAN), (-SUBNORMAL, 1.0, -0.0), (SUBNORMAL, INF, 0.0),
]  # fmt: skip


def quotients() -> Iterator[Case]:
    a, b = pairs("f32", limit=800)
    a, b = np.concatenate([a, sample("f32", 400, "numerator")]), np.concatenate([b, sample("f32", 400, "denominator")])
    finite_ones = np.isfinite(a) & np.isfinite(b) & (np.abs(b) >= NORMAL)
    for name, most in (("approx", 2.0**126), ("full", INF)):
        for ftz in (False, True):
            rows: list[tuple[float, ...]] = [(x, y, flat if ftz else kept) for x, y, kept, flat in QUOTIENTS]
            rows = [row for row in rows if name == "approx" or not 2.0**126 < abs(row[1]) < INF]
            *operands, expected = (f32(column) for column in zip(*rows, *FLUSHED[: 5 * ftz], strict=True))
            opcode = f"div.{name}{'.ftz' * ftz}.f32"
            yield case(opcode, operands, expected)
            good = finite_ones & (np.abs(b) <= most) & ((np.abs(a) >= NORMAL) | (a == 0) | (not ftz))
            pairs_of = zip(a[good].tolist(), b[good].tolist(), strict=True)
            words = "max 2 ulp" + " for |b| in [2^-126, 2^126]" * (name == "approx")
            error = 2 * ULP, NORMAL if ftz else 2 * LEAST, words
            yield case(opcode, [a[good], b[good]], np.array([single(x / y) for x, y in pairs_of]), error)


def upper(x: float) -> float:
    bits = np.array([x]).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    value = float(bits.view(np.float64)[0])
    return math.copysign(0.0, value) if abs(value) < 2.0**-1022 else value


def doubles() -> Iterator[Case]:
    special = np.array([-INF, -0.0, 0.0, INF, NAN, 2.0**-1074, -(2.0**-1040)])
    reciprocal, root, fine = "rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", "rsqrt.approx.f64"
    yield case(reciprocal, [special], np.array([-0.0, -INF, INF, 0.0, NAN, INF, -INF]), kind="f64")
    yield case(root, [special], np.array([NAN, -INF, INF, 0.0, NAN, INF, -INF]), kind="f64")
    yield case(fine, [special], np.array([NAN, -INF, INF, 0.0, NAN, 2.0**537, NAN]), kind="f64")
    numbers = np.concatenate([edge("f64"), sample("f64", 200, "gross")])
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) >= 2.0**-1021) & (np.abs(numbers) < 2.0**1021)]
    gross, stated = (2.0**-19, 0.0, "gross: 20 bits of mantissa; the ISA states no error"), "the ISA states no error"
    yield case(reciprocal, [numbers], np.array([1 / upper(x) for x in numbers.tolist()]), gross, "f64")
    numbers = np.abs(numbers)
    yield case(root, [numbers], np.array([1 / math.sqrt(upper(x)) for x in numbers.tolist()]), gross, "f64")
    yield case(fine, [numbers], np.array([1 / math.sqrt(x) for x in numbers.tolist()]), (2.0**-51, 0.0, stated), "f64")
    a = np.abs(sample("f64", 64, "lower"))
    a = a[np.isfinite(a)]
    for opcode in (reciprocal, root):  # the lower 32 bits of the gross results are zero: checked as bits
        text = f".reg .f64 t;\n.reg .b32 u;\n{opcode} t, a;\nmov.b64 {{d, u}}, t;"
        yield given(opcode, text, named("f64", a), {"d": ("b32", np.zeros(len(a), np.uint32))}, note="lower word")


HALFS = [row for row in ROWS.values() if row.group == "halfs"]
CASES = {
    "approximate": [*unary(), *ranges(), *quotients(), *doubles()],
    "floating": [*rounded(), *extremes(), *signs()],
    "halfs": [comparison(row) if row.form.startswith("set") else computed(row) for row in HALFS],
}
