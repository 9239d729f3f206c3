"""Number types: how an element is stored, and the type it is computed in.

Takes nothing from torch; `capture` maps torch dtypes by name. bf16, f16 and the 8-bit floats are storage only:
a load widens them to f32, a store rounds to nearest even.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """A stored number format. `kind`: f float, i signed, u unsigned, b bool."""

    name: str
    bytes: int
    kind: str
    format: str  # the name a device catalogue uses for its peak
    torch: str  # the name PyTorch uses

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def compute(self) -> "DType":
        """The type arithmetic is done in."""
        return F32 if self.kind == "f" and self.bytes < 4 else self

    def __repr__(self) -> str:
        return self.name


F64 = DType("f64", 8, "f", "fp64", "float64")
F32 = DType("f32", 4, "f", "fp32", "float32")
BF16 = DType("bf16", 2, "f", "bf16", "bfloat16")
F16 = DType("f16", 2, "f", "fp16", "float16")
F8E4M3 = DType("f8e4m3", 1, "f", "fp8", "float8_e4m3fn")
F8E5M2 = DType("f8e5m2", 1, "f", "fp8", "float8_e5m2")
I64 = DType("i64", 8, "i", "int64", "int64")
I32 = DType("i32", 4, "i", "int32", "int32")
I16 = DType("i16", 2, "i", "int16", "int16")
I8 = DType("i8", 1, "i", "int8", "int8")
U64 = DType("u64", 8, "u", "int64", "uint64")
U32 = DType("u32", 4, "u", "int32", "uint32")
U16 = DType("u16", 2, "u", "int16", "uint16")
U8 = DType("u8", 1, "u", "int8", "uint8")
BOOL = DType("bool", 1, "b", "int8", "bool")

DTYPES: dict[str, DType] = {
    d.name: d for d in (F64, F32, BF16, F16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
}
