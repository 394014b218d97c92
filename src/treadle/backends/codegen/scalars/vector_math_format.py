"""Facts about float32 and float64 that the elementary functions need."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.kernel.language import KernelError, Value, fma
from treadle.base import dtype as dt
from treadle.base.dtype import DType

LN2 = 0.6931471805599453
"""log(2), to be rounded to the type where it is used."""


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating type and constants split into a sum of its numbers.

    Attributes:
        dtype, integer: the type, and the unsigned integer with its bits.
        precision: fraction bits that are stored.
        bias: what is added to exponents.
        ln2: log(2) as a sum; whole multiples of the first number are exact.
        half_pi: pi/2 as a sum of numbers cut off, not rounded: all have one sign.
    """

    dtype: DType
    integer: DType
    precision: int
    bias: int
    ln2: tuple[float, float]
    half_pi: tuple[float, float, float]

    @property
    def magic(self) -> float:
        """Added to a number, it rounds it to an integer, which the low bits then hold."""
        return 1.5 * 2.0**self.precision

    @property
    def smallest_normal(self) -> float:
        """Numbers below it have fewer bits."""
        return float(2.0 ** (1 - self.bias))

    @property
    def tiny(self) -> float:
        """The magnitude below which x * x is lost beside x."""
        return float(2.0 ** (-self.precision - 2))


FLOAT32 = Format(
    dt.float32,
    dt.uint32,
    23,
    127,
    (0.693145751953125, 1.428606765330187e-06),
    (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
)
FLOAT64 = Format(
    dt.float64,
    dt.uint64,
    52,
    1023,
    (0.6931471803691238, 1.9082149292705877e-10),
    (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
)
_FORMATS = {dt.float32: FLOAT32, dt.float64: FLOAT64}


def format_of(x: Value) -> Format:
    """The format of a value; `KernelError` unless it is float32 or float64."""
    found = _FORMATS.get(x.dtype)
    if found is None:
        raise KernelError(f"no elementary function of {x.dtype.name}")
    return found


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """Coefficients, the constant term first, by Horner's rule."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def bits_of(x: Value) -> Value:
    """The bits as an unsigned integer."""
    return x.bitcast(format_of(x).integer)


def two_to_the(biased: Value, form: Format) -> Value:
    """2**n from n + bias in the low bits of a float or an unsigned integer."""
    bits = biased.bitcast(form.integer)
    return (bits << form.precision).bitcast(form.dtype)


def two_sum(x: Value | float, y: Value) -> tuple[Value, Value]:
    """x + y rounded, and exactly what that lost (Knuth)."""
    total = x + y
    part = total - x
    return total, x - (total - part) + (y - part)


def fast_two_sum(x: Value | float, y: Value) -> tuple[Value, Value]:
    """The same where x is not smaller in size than y (Dekker)."""
    total = x + y
    return total, y - (total - x)


def two_product(x: Value, y: Value | float) -> tuple[Value, Value]:
    """x * y rounded, and exactly what that lost."""
    product = x * y
    return product, fma(x, y, -product, exact=True)
