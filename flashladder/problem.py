"""The problem that a kernel solves: shapes, floating-point operations and bytes. Their only home; nothing to run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Tensors (batch, seq_len, n_heads, d_head), in elements; as documents write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: int = Field(gt=0)
    seq_len: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    d_head: int = Field(gt=0)

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass, both matrix products: 4 B H S^2 d_head."""
        return 4 * self.batch * self.n_heads * self.seq_len**2 * self.d_head

    @property
    def input_bytes(self) -> int:
        """Bytes that must come from DRAM after an L2 flush: Q, K and V in 16 bits (O may stay in the L2)."""
        return 3 * 2 * self.batch * self.seq_len * self.n_heads * self.d_head
