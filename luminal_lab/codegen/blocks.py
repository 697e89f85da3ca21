"""Block programs: kernels for targets that compute on whole blocks (Triton, Metal).

`block_schedule` (`block_schedule.py`) says which axes are cut into blocks, and
`lower_blocks` (`block_lower.py`) makes the tile program; the renderers are `triton.py` and
`metal.py`.
"""

from __future__ import annotations

from luminal_lab.codegen.block_lower import lower_blocks
from luminal_lab.codegen.block_schedule import block_schedule

__all__ = ["block_schedule", "lower_blocks"]
